#include "device/cpu/bell.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace aliquot {

// Not the PRIVATE forms: the word may be shared by processes.
void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, int64_t ns) {
  if (ns <= 0) return;
  timespec t{ns / 1'000'000'000, ns % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &t, nullptr, 0);
}

}  // namespace aliquot
