// Sums of blocks into norm bins in global memory, exact in any order.
//
// A block's words have 32 bits, for shared memory has native atomics of these.
// f32 and the half types are all of class 0.  Once the bins have that class or
// a higher one, and their first_bad says none, blocks add their words by
// atomics without waiting for each other; whoever finds the bins otherwise
// makes them so, under a lock (the bins' reserved word, 0 when free). Blocks of
// f64 merge under the lock.  Its holder waits for nobody.
#pragma once

#include <cstddef>
#include <cstring>

#include "kernels/arithmetic/norm_value.h"
#include "kernels/cuda/device.h"

namespace aliquot::kernels {

inline constexpr int kHalfWords = 2 * NormBins::kWords;

using Atomic = unsigned long long;

__device__ inline Atomic* as_atomic(uint64_t* p) {
  return reinterpret_cast<Atomic*>(p);
}
__device__ inline Atomic* as_atomic(int64_t* p) {
  return reinterpret_cast<Atomic*>(p);
}
__device__ inline int64_t read_shared(int64_t* p) {
  return static_cast<int64_t>(atomicAdd(as_atomic(p), 0ull));
}

// words += value, from word `at` on.
__device__ inline void add_word(uint32_t* words, int at, uint32_t value) {
  if (value == 0) return;
  const uint32_t old = atomicAdd(&words[at], value);
  bool carry = old + value < old;
  for (int i = at + 1; carry && i < kHalfWords; ++i) {
    carry = atomicAdd(&words[i], 1u) == ~0u;
  }
}

__device__ inline void add_word(uint64_t* words, int at, Atomic value) {
  if (value == 0) return;
  const Atomic old = atomicAdd(as_atomic(&words[at]), value);
  bool carry = old + value < old;
  for (int i = at + 1; carry && i < NormBins::kWords; ++i) {
    carry = atomicAdd(as_atomic(&words[i]), 1ull) == ~0ull;
  }
}

// words += value * 2^position.  Bits beyond the words are zero.
struct Wide192 {
  uint64_t at[3];
};

__device__ ALQ_NOINLINE inline void add_shifted(uint32_t* words, int position,
                                                Wide192 value) {
  const int shift = position % 32, at = position / 32;
  uint64_t rest = 0;  // what the lower pieces leave
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    const uint64_t piece = value.at[i / 2] >> (i % 2 * 32) & 0xffffffffu;
    rest |= piece << shift;
    if (at + i < kHalfWords) {
      add_word(words, at + i, static_cast<uint32_t>(rest & 0xffffffffu));
    }
    rest >>= 32;
  }
  if (at + 6 < kHalfWords) {
    add_word(words, at + 6, static_cast<uint32_t>(rest & 0xffffffffu));
  }
}

__device__ inline uint64_t join(const uint32_t* words, int i) {
  return words[2 * i] | static_cast<uint64_t>(words[2 * i + 1]) << 32;
}

__device__ inline void join_words(const uint32_t* from, uint64_t* to) {
  for (int i = 0; i < NormBins::kWords; ++i) to[i] = join(from, i);
}

__device__ inline void lock_bins(NormBins* bins) {
  while (atomicCAS(as_atomic(&bins->reserved), 0ull, 1ull) != 0) {
    __nanosleep(100);
  }
  __threadfence();
}

__device__ inline void unlock_bins(NormBins* bins) {
  __threadfence();
  atomicExch(as_atomic(&bins->reserved), 0ull);
}

// Whoever adds a non-finite element counts it before it says which.
__device__ inline bool says_none_by_zero(NormBins* bins) {
  const bool zero = read_shared(&bins->first_bad) == 0;
  __threadfence();
  return zero && read_shared(&bins->nonfinite) == 0;
}

// Makes room for class 0; the words are in place before the class is.
__device__ inline void raise_to_class_0(NormBins* bins, int64_t top) {
  const bool next = top == kClassBias - 1;
  for (int i = 0; i < NormBins::kWords; ++i) {
    const uint64_t high = next ? bins->high[i] : 0;
    atomicExch(as_atomic(&bins->low[i]), static_cast<Atomic>(high));
    atomicExch(as_atomic(&bins->high[i]), 0ull);
  }
  __threadfence();
  atomicExch(as_atomic(&bins->top), static_cast<Atomic>(kClassBias));
}

// Before anything is added; `any`: something of class 0 will be.
__device__ inline void prepare_bins(NormBins* bins, bool any) {
  const bool low = any && read_shared(&bins->top) < kClassBias;
  if (low || says_none_by_zero(bins)) {
    lock_bins(bins);
    const int64_t top = read_shared(&bins->top);
    if (any && top < kClassBias) raise_to_class_0(bins, top);
    if (says_none_by_zero(bins)) {
      atomicExch(as_atomic(&bins->first_bad), ~0ull);
    }
    unlock_bins(bins);
  }
  __threadfence();
}

__device__ inline void add_bad(NormBins* bins, uint32_t count, Atomic first) {
  atomicAdd(as_atomic(&bins->nonfinite), static_cast<Atomic>(count));
  __threadfence();
  // As unsigned numbers -1, which says none, is the largest.
  atomicMin(as_atomic(&bins->first_bad), first);
}

// Words of class 0 into prepared bins, a word per thread.
__device__ inline void add_class_0(NormBins* bins, const uint32_t* words) {
  const int64_t above = read_shared(&bins->top) - kClassBias;
  if (above > 1) return;
  uint64_t* into = above == 1 ? bins->low : bins->high;
  for (unsigned i = threadIdx.x; i < NormBins::kWords; i += blockDim.x) {
    add_word(into, static_cast<int>(i),
             static_cast<Atomic>(join(words, static_cast<int>(i))));
  }
}

// What other multiprocessors wrote may be in no cache of this one: volatile.
__device__ inline void merge_in_turn(NormBins* bins, const NormBins& from) {
  // All but the lock.
  static_assert(offsetof(NormBins, reserved) + 8 == sizeof(NormBins));
  constexpr int kAll = offsetof(NormBins, reserved) / sizeof(uint64_t);
  uint64_t words[kAll];
  NormBins sum = {};
  lock_bins(bins);
  volatile uint64_t* shared = reinterpret_cast<volatile uint64_t*>(bins);
  for (int i = 0; i < kAll; ++i) words[i] = shared[i];
  std::memcpy(&sum, words, sizeof(words));
  bins_merge(&sum, from);
  std::memcpy(words, &sum, sizeof(words));
  for (int i = 0; i < kAll; ++i) shared[i] = words[i];
  unlock_bins(bins);
}

}  // namespace aliquot::kernels
