#include "tools/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace aliquot::tools {
namespace {

std::vector<std::string> make_environment(const ChildSpec& spec) {
  std::vector<std::string> out;
  for (char** e = environ; *e != nullptr; ++e) {
    std::string entry = *e;
    bool keep = true;
    for (auto& [name, value] : spec.environment) {
      keep &= !entry.starts_with(name + "=");
    }
    for (const std::string& prefix : spec.removed_prefixes) {
      keep &= !entry.starts_with(prefix);
    }
    if (keep) out.push_back(std::move(entry));
  }
  for (auto& [name, value] : spec.environment) {
    out.push_back(name + "=" + value);
  }
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

// After fork: async-signal-safe calls only.
void become(const ChildSpec& spec, pid_t parent, char* const* argv,
            char* const* envp) {
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it died before prctl
  if (spec.in >= 0) dup2(spec.in, 0);
  if (spec.out >= 0) dup2(spec.out, 1);
  if (spec.err >= 0) dup2(spec.err, 2);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  execvpe(argv[0], argv, envp);
}

}  // namespace

StartedChild start_child(const ChildSpec& spec) {
  StartedChild child;
  std::vector<std::string> command = spec.command;
  std::vector<std::string> environment = make_environment(spec);
  std::vector<char*> argv = pointers(command);
  std::vector<char*> envp = pointers(environment);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    child.error = errno;
    return child;
  }
  pid_t parent = getpid();
  child.pid = fork();
  if (child.pid == 0) {
    become(spec, parent, argv.data(), envp.data());
    int error = errno;
    (void)!write(ends[1], &error, sizeof error);
    _exit(127);
  }
  if (child.pid < 0) child.error = errno;
  close(ends[1]);
  // exec closes the other end: no bytes, no error.
  int error = 0;
  if (child.pid > 0 && read(ends[0], &error, sizeof error) == sizeof error) {
    child.error = error;
    waitpid(child.pid, nullptr, 0);
    child.pid = -1;
  }
  close(ends[0]);
  return child;
}

}  // namespace aliquot::tools
