#include "multi/tools/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>

namespace aliquot::testing {

double now_s() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

void sleep_ms(int ms) { usleep(static_cast<useconds_t>(ms) * 1000); }

Process::Process(std::vector<std::string> arguments, const std::string& input)
    : start_(now_s()) {
  int in[2], out[2], err[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0 ||
      pipe2(err, O_CLOEXEC) != 0) {
    std::abort();
  }
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(in[0], 0);
    dup2(out[1], 1);
    dup2(err[1], 2);
    execv(argv[0], argv.data());
    _exit(125);
  }
  close(in[0]);
  close(out[1]);
  close(err[1]);
  (void)!write(in[1], input.data(), input.size());
  close(in[1]);
  out_ = out[0];
  err_ = err[0];
}

Process::~Process() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (out_ >= 0) close(out_);
  if (err_ >= 0) close(err_);
}

void Process::signal(int number) { kill(pid_, number); }

bool Process::read_more(double seconds) {
  pollfd p[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
  poll(p, 2, static_cast<int>(std::max(seconds, 0.0) * 1000));
  for (pollfd& source : p) {
    if (source.fd < 0 || source.revents == 0) continue;
    bool is_out = source.fd == out_;
    char buffer[4096];
    ssize_t n = read(source.fd, buffer, sizeof buffer);
    if (n > 0) {
      (is_out ? outcome_.out : outcome_.err)
          .append(buffer, static_cast<size_t>(n));
    } else {
      close(source.fd);
      (is_out ? out_ : err_) = -1;
    }
  }
  return out_ >= 0 || err_ >= 0;
}

bool Process::wait_for_output(const std::string& text, double seconds) {
  double until = now_s() + seconds;
  while (outcome_.out.find(text) == std::string::npos) {
    if (now_s() > until || !read_more(0.1)) return false;
  }
  return true;
}

Outcome Process::finish(double seconds) {
  double until = now_s() + seconds;
  while (read_more(0.1) && now_s() < until) {
  }
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (now_s() > until) {
      outcome_.timed_out = true;
      kill(pid_, SIGKILL);
      waitpid(pid_, &status, 0);
      break;
    }
    sleep_ms(5);
  }
  pid_ = -1;
  outcome_.code =
      WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome_.seconds = now_s() - start_;
  return outcome_;
}

Outcome aliquot(std::vector<std::string> arguments, const std::string& input) {
  arguments.insert(arguments.begin(), ALIQUOT_COMMAND);
  return Process(std::move(arguments), input).finish();
}

bool is_gone(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return true;
  size_t end = text.rfind(')');
  return end == std::string::npos || text.substr(end).starts_with(") Z");
}

bool all_gone_within(const std::vector<pid_t>& pids, double seconds) {
  double until = now_s() + seconds;
  while (!std::all_of(pids.begin(), pids.end(), is_gone)) {
    if (now_s() > until) return false;
    sleep_ms(20);
  }
  return true;
}

std::vector<pid_t> numbers_in(const std::string& text) {
  std::vector<pid_t> out;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && std::isdigit(text[end]) != 0) ++end;
    if (end > i) out.push_back(std::stoi(text.substr(i, end - i)));
    i = end + 1;
  }
  return out;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos;
       at += part.size()) {
    ++n;
  }
  return n;
}

}  // namespace aliquot::testing
