// Runs a program to its end and collects what it wrote; every wait is bounded.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace aliquot::testing {

struct Outcome {
  int code = -1;  // exit code, or 128 + signal
  std::string out, err;
  double seconds = 0;
  bool timed_out = false;
};

class Process {
 public:
  // arguments[0] is the program.  input: given as standard input.
  explicit Process(std::vector<std::string> arguments,
                   const std::string& input = "");
  ~Process();  // kills what is left
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number);
  // Reads until standard output holds text; false after `seconds`.
  bool wait_for_output(const std::string& text, double seconds = 30);
  const std::string& output() const { return outcome_.out; }
  Outcome finish(double seconds = 60);

 private:
  bool read_more(double seconds);

  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  double start_ = 0;
  Outcome outcome_;
};

// `aliquot` with these arguments.
Outcome aliquot(std::vector<std::string> arguments,
                const std::string& input = "");

double now_s();
void sleep_ms(int ms);
// Gone, or a zombie that only waits to be reaped.
bool is_gone(pid_t pid);
bool all_gone_within(const std::vector<pid_t>& pids, double seconds);
// The whole numbers in text.
std::vector<pid_t> numbers_in(const std::string& text);
size_t count_of(const std::string& text, const std::string& part);

}  // namespace aliquot::testing
