// aliquot run on a terminal.
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>

#include "multi/tools/process.h"

namespace aliquot::testing {
namespace {

// What appears on a terminal 80 columns wide.
std::string on_terminal(std::vector<std::string> arguments, int* code) {
  arguments.insert(arguments.begin(), ALIQUOT_COMMAND);
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  argv.push_back(nullptr);
  winsize size = {24, 80, 0, 0};
  int fd = -1;
  pid_t pid = forkpty(&fd, nullptr, nullptr, &size);
  if (pid == 0) {
    alarm(60);
    execv(argv[0], argv.data());
    _exit(125);
  }
  std::string out;
  char buffer[4096];
  pollfd p = {fd, POLLIN, 0};
  while (poll(&p, 1, 60'000) > 0) {
    ssize_t n = read(fd, buffer, sizeof buffer);
    if (n <= 0) break;
    out.append(buffer, static_cast<size_t>(n));
  }
  int status = 0;
  waitpid(pid, &status, 0);
  close(fd);
  *code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return out;
}

BOOST_AUTO_TEST_CASE(rank_0_sees_a_terminal_of_the_width_that_is_left) {
  unsetenv("COLUMNS");
  int code = -1;
  std::string out = on_terminal(
      {"run", "-n", "2", "--", "sh", "-c",
       "exec 3<&1; if [ -t 1 ]; then echo r$RANK terminal $COLUMNS $(stty "
       "size <&3); else echo r$RANK pipe $COLUMNS; fi"},
      &code);
  BOOST_TEST(code == 0);
  BOOST_TEST(count_of(out, "[0] r0 terminal 76 24 76\r\n") == 1u, out);
  BOOST_TEST(count_of(out, "[1] r1 pipe 76\r\n") == 1u, out);
}

BOOST_AUTO_TEST_CASE(a_progress_bar_stays_below_the_lines_of_others) {
  int code = -1;
  std::string out = on_terminal(
      {"run", "-n", "2", "--", "sh", "-c",
       "if [ $RANK = 0 ]; then printf '\\rbar 1'; sleep 1; printf '\\rbar 2\\n'"
       "; else sleep 0.5; echo line; sleep 1; fi"},
      &code);
  BOOST_TEST(code == 0);
  // Drawn, erased for the other rank's line, drawn again, replaced.
  BOOST_TEST(out.find("[0] bar 1\r\033[K[1] line\r\n[0] bar 1\r\033[K[0] bar "
                      "2\r\n") != std::string::npos,
             out);
}

}  // namespace
}  // namespace aliquot::testing
