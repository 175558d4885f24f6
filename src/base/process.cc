#include "base/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace aliquot {
namespace {

// The text after `at` by so many spaces, or null.
const char* skip_fields(const char* at, int fields) {
  for (; at != nullptr && fields > 0; --fields) at = strchr(at + 1, ' ');
  return at;
}

// Of a call that failed: there is no such process, or nobody can say.
ProcessInfo failure() {
  ProcessInfo info;
  info.known = errno == ENOENT || errno == ESRCH;
  return info;
}

}  // namespace

ProcessInfo process_info(int32_t pid) {
  std::string path = fmt::format("/proc/{}/stat", pid);
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return failure();
  char text[1024];
  ssize_t length = 0;
  do {
    length = read(fd, text, sizeof text - 1);
  } while (length < 0 && errno == EINTR);
  ProcessInfo info;
  if (length < 0) info = failure();
  close(fd);
  if (length <= 0) return info;
  text[length] = '\0';
  // The name, field 2, may hold anything; the last ')' ends it.  The state is
  // field 3, the number of threads field 20, the start time field 22.
  const char* at = strrchr(text, ')');
  if (at != nullptr && at[1] == ' ') info.state = at[2];
  at = skip_fields(at, 18);
  unsigned long long start = 0;
  if (at != nullptr && sscanf(at, "%d %*s %llu", &info.threads, &start) == 2) {
    info.start_time = start;
  }
  return info;
}

ProcessState process_state(int32_t pid, uint64_t start_time) {
  ProcessInfo info = process_info(pid);
  if (!info.known) {
    bool ended = kill(pid, 0) != 0 && errno == ESRCH;
    return ended ? ProcessState::kEnded : ProcessState::kUnknown;
  }
  if (info.start_time == 0 || info.start_time != start_time) {
    return ProcessState::kEnded;
  }
  // The first thread of a process may end before the others do.
  bool reapable = info.state == 'Z' && info.threads <= 1;
  if (info.state == 'X' || reapable) return ProcessState::kEnded;
  return info.state == 'T' ? ProcessState::kStopped : ProcessState::kRuns;
}

bool all_threads_paused(int32_t pid) {
  if (pid == getpid()) return false;
  std::error_code error;
  std::filesystem::directory_iterator tasks(fmt::format("/proc/{}/task", pid),
                                            error);
  for (; !error && tasks != end(tasks); tasks.increment(error)) {
    std::ifstream file(tasks->path() / "syscall");
    std::string text;
    const bool told = static_cast<bool>(std::getline(file, text));
    std::error_code ignored;
    const bool gone = !told && !exists(tasks->path(), ignored);
    if (!gone && (!told || text == "running")) return false;
  }
  return !error || error == std::errc::no_such_file_or_directory ||
         error == std::errc::no_such_process;
}

}  // namespace aliquot
