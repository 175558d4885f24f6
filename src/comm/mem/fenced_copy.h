// Fenced copies: stores into memory of a peer that can not come too late.
//
// A rank that writes into its peers' memory may be stopped in the middle and go
// on after they have given it up and use that memory for something else.  So
// the copy looks at a word and copies within one restartable sequence: a thread
// that was preempted, stopped or took a signal in it does not go on where it
// was but looks at the word again.  After the word was closed only copies of
// threads that run at that moment come to their end; all_threads_paused() says
// that none does.  (A process is called stopped a moment before its thread
// leaves the processor, and one that goes on within that moment was not
// interrupted.)
//
// Cost: some ten instructions beside the copy, which begins anew if the kernel
// interrupts it: keep it short.  Source: rseq(2), "Restartable Sequences".
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace aliquot::mem {

// Whether threads of this process can: x86-64 with AVX, and the C library has
// registered them with the kernel (glibc since 2.35, unless it was told not
// to).
bool can_fence_copies();

struct FencedCopy {
  std::byte* to;
  const std::byte* from;
  int64_t bytes;
  bool past_caches;
};
// False: the word was not 0 when it was last looked at; what was written before
// stays.
bool fenced_copy(const std::atomic<uint32_t>& closed, const FencedCopy& copy);

}  // namespace aliquot::mem
