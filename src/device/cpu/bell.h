// Bell: the one thing a rank ever sleeps on.
//
// A rank has one bell, in memory that its peers map.  Whoever changes a state
// that another rank may wait for stores the state and then rings.  A waiter
// announces itself in `sleepers`, looks at everything once more, and sleeps
// until `rings` moves.  So one sleep covers any number of pending operations,
// and ringing costs one load while nobody sleeps.
//
// Why no wake-up is lost: all accesses are sequentially consistent.  Either the
// ringer sees the sleeper, or the sleeper's second look sees the state.
#pragma once

#include <atomic>
#include <cstdint>

namespace aliquot {

struct alignas(64) Bell {
  std::atomic<uint32_t> rings{0};
  std::atomic<uint32_t> sleepers{0};
  std::atomic<int32_t> core{-1};  // where the rank last waited
};
static_assert(sizeof(Bell) == 64);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Wakes all who sleep on the word, in any process.
void futex_wake_all(std::atomic<uint32_t>& word);
// Sleeps while the word equals `seen`, at most ns nanoseconds.
void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, int64_t ns);

// Call after storing (seq_cst) what the sleeper waits for.  Returns the number
// of system calls made, 0 or 1.
inline int ring(Bell& bell) {
  if (bell.sleepers.load() == 0) return 0;
  bell.rings.fetch_add(1);
  futex_wake_all(bell.rings);
  return 1;
}

inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace aliquot
