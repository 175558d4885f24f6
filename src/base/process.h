// What the kernel says of a process.
#pragma once

#include <cstdint>

namespace aliquot {

struct ProcessInfo {
  uint64_t start_time = 0;  // clock ticks since boot; 0: there is none
  char state = 0;           // as in /proc/PID/stat: R S D T t Z X
  int threads = 0;
  // False: it could not be asked, for want of a descriptor, say.
  bool known = true;
};
ProcessInfo process_info(int32_t pid);

// kUnknown: the kernel could not be asked, so nothing follows.
enum class ProcessState { kRuns, kStopped, kEnded, kUnknown };

// Of the process with this number that began at this time; another one with the
// number says that it has ended.  One that waits to be reaped has ended too.
ProcessState process_state(int32_t pid, uint64_t start_time);

// Whether each thread of a process was off its processor once since this was
// called: asleep, stopped or frozen, not just about to be, which is what a
// state of "stopped" may still mean.  False of the calling process, and if the
// kernel does not tell.
// Source: proc(5), /proc/PID/task/TID/syscall, which says "running" or waits
// until the thread has left its processor.
bool all_threads_paused(int32_t pid);

}  // namespace aliquot
