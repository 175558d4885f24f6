// Fork safety: a forked child has none of the library's threads and shares its
// parent's memory, so it must not touch either.
#pragma once

#include <cstdint>

namespace aliquot {

// Differs between a process and the children it forks.  Objects remember it
// and refuse to work where it changed.
uint64_t fork_stamp();

// A thread started within has all signals blocked: handlers are the host's.
class BlockSignals {
 public:
  BlockSignals();
  ~BlockSignals();
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;

 private:
  unsigned long old_[16];  // a sigset_t
};

}  // namespace aliquot
