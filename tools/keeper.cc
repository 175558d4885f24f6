#include "tools/keeper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>

namespace aliquot::tools {
namespace {

constexpr int kPatience = 500;  // times 10 ms

// Ranks are killed, which takes a moment, and may still make their files.
void remove_folder(const std::string& folder) {
  std::error_code failed;
  for (int i = 0; i < 100; ++i) {
    std::filesystem::remove_all(folder, failed);
    if (!failed) return;
    usleep(10'000);
  }
}

// Reads +group and -group until the launcher's end of the pipe closes.
[[noreturn]] void keep(int fd, const std::string& folder) {
  setsid();
  prctl(PR_SET_NAME, "alq-keeper");  // pkill aliquot is for the launcher
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  std::set<pid_t> groups;
  pid_t group = 0;
  while (true) {
    ssize_t n = read(fd, &group, sizeof group);
    if (n == sizeof group) {
      group > 0 ? (void)groups.insert(group) : (void)groups.erase(-group);
    } else if (n >= 0 || errno != EINTR) {
      break;
    }
  }
  for (pid_t g : groups) kill(-g, SIGKILL);
  if (!folder.empty()) remove_folder(folder);
  _exit(0);
}

}  // namespace

bool Keeper::start(const std::string& folder) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  pid_ = fork();
  if (pid_ == 0) {
    // Nothing of the launcher's may stay open here, its output least of all.
    dup2(ends[0], 0);
    close_range(1, ~0u, 0);
    keep(0, folder);
  }
  close(ends[0]);
  pipe_ = ends[1];
  return pid_ > 0;
}

void Keeper::add(pid_t group) { (void)!write(pipe_, &group, sizeof group); }

void Keeper::remove(pid_t group) {
  group = -group;
  (void)!write(pipe_, &group, sizeof group);
}

Keeper::~Keeper() {
  if (pipe_ >= 0) close(pipe_);
  // It may have been stopped; it needs nobody.
  for (int i = 0; pid_ > 0 && i < kPatience; ++i) {
    if (waitpid(pid_, nullptr, WNOHANG) != 0) return;
    usleep(10'000);
  }
}

}  // namespace aliquot::tools
