#include "tools/lines.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace aliquot::tools {
namespace {
// A line that never ends is cut here.
constexpr size_t kLongest = 64 * 1024;
// A pipe that is writable takes as many bytes at once without a wait.
constexpr size_t kAtOnce = PIPE_BUF;
// For a slow reader, once the job is to end.
constexpr int kHurryMs = 200;
constexpr std::string_view kErase = "\r\033[K";
}  // namespace

void LineMerger::feed(LineStream& stream, std::string_view bytes) {
  for (char c : bytes) {
    if (c == '\n' || stream.text.size() >= kLongest) {
      write_line(stream, stream.text.empty() ? stream.bar : stream.text);
      stream.text.clear();
      stream.bar.clear();
      if (c == '\n') continue;
    }
    if (c == '\r') {
      if (!stream.text.empty()) stream.bar = std::move(stream.text);
      stream.text.clear();
    } else {
      stream.text += c;
    }
  }
  if (terminal_ && !(stream.text.empty() && stream.bar.empty())) show(stream);
}

void LineMerger::finish(LineStream& stream) {
  if (stream.text.empty() && stream.bar.empty()) return;
  feed(stream, "\n");
}

void LineMerger::say(const std::string& line) {
  std::string bar = shown_;
  hide();
  write(2, line + "\n");
  shown_ = bar;
  if (!bar.empty()) write(shown_fd_, bar);
}

void LineMerger::write_line(const LineStream& stream, const std::string& text) {
  std::string bar = shown_of_ == &stream ? "" : shown_;
  hide();
  write(stream.fd, stream.prefix + text + "\n");
  shown_ = bar;
  if (!bar.empty()) write(shown_fd_, bar);
}

void LineMerger::show(const LineStream& stream) {
  hide();
  shown_ = stream.prefix + (stream.text.empty() ? stream.bar : stream.text);
  shown_fd_ = stream.fd;
  shown_of_ = &stream;
  write(shown_fd_, shown_);
}

void LineMerger::hide() {
  if (!shown_.empty()) write(shown_fd_, kErase);
  shown_.clear();
}

void LineMerger::write(int fd, std::string_view bytes) {
  while (!bytes.empty() && !broken_) {
    if (!writable(fd)) return;
    ssize_t n = ::write(fd, bytes.data(), std::min(bytes.size(), kAtOnce));
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno != EINTR && errno != EAGAIN) {
      broken_ = true;
    }
  }
}

// Waits for the reader; false if the job is to end and it reads nothing.
bool LineMerger::writable(int fd) {
  pollfd fds[2] = {{fd, POLLOUT, 0}, {hurry_, POLLIN, 0}};
  while (!hurries_) {
    if (poll(fds, 2, -1) < 0) continue;  // a signal
    if (fds[0].revents != 0) return true;
    hurries_ = fds[1].revents != 0;
    if (hurries_ && poll(fds, 1, kHurryMs) == 1) return true;
  }
  return poll(fds, 1, 0) == 1;
}

}  // namespace aliquot::tools
