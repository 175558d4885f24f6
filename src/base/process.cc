#include "base/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace aliquot {

ProcessInfo process_info(int32_t pid) {
  std::string path = fmt::format("/proc/{}/stat", pid);
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  char text[1024];
  ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  if (length <= 0) return {};
  text[length] = '\0';
  // The name, field 2, may hold anything; the last ')' ends it.  The state is
  // field 3, the start time field 22.
  const char* at = strrchr(text, ')');
  ProcessInfo info;
  if (at != nullptr && at[1] == ' ') info.state = at[2];
  for (int field = 2; at != nullptr && field < 22; ++field) {
    at = strchr(at + 1, ' ');
  }
  unsigned long long start = 0;
  if (at != nullptr && sscanf(at, "%llu", &start) == 1) {
    info.start_time = start;
  }
  return info;
}

}  // namespace aliquot
