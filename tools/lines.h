// Merges the output of several ranks line by line.
//
// A line ends with a newline.  A carriage return starts the line again: that is
// how progress bars are drawn.  On a terminal the unfinished line that changed
// last stays at the bottom while whole lines scroll above it; elsewhere only
// the last state of such a line is written, when it ends.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace aliquot::tools {

// One output stream of one rank.
struct LineStream {
  std::string prefix;  // "[3] "
  int fd = 1;          // where its lines go
  std::string text;    // since the last newline or carriage return
  std::string bar;     // the text that the last carriage return replaced
};

class LineMerger {
 public:
  explicit LineMerger(bool terminal) : terminal_(terminal) {}

  // From when this descriptor is readable, what the reader does not take is
  // dropped: nobody else would look at the signal that it stands for.
  void hurry_at(int fd) { hurry_ = fd; }

  void feed(LineStream& stream, std::string_view bytes);
  // Writes what is left without a newline.
  void finish(LineStream& stream);
  // Lines of the launcher itself, to standard error.
  void say(const std::string& line);
  // The reader has gone away.
  bool broken() const { return broken_; }

 private:
  void write_line(const LineStream& stream, const std::string& text);
  void show(const LineStream& stream);
  void hide();
  void write(int fd, std::string_view bytes);
  bool writable(int fd);

  const bool terminal_;
  bool broken_ = false;
  int hurry_ = -1;
  bool hurries_ = false;
  std::string shown_;  // the unfinished line on the terminal
  int shown_fd_ = 1;
  const LineStream* shown_of_ = nullptr;
};

}  // namespace aliquot::tools
