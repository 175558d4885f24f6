// What the kernel says of a process.
#pragma once

#include <cstdint>

namespace aliquot {

struct ProcessInfo {
  uint64_t start_time = 0;  // clock ticks since boot; 0: there is none
  char state = 0;           // as in /proc/PID/stat: R S D T t Z X
};
ProcessInfo process_info(int32_t pid);

}  // namespace aliquot
