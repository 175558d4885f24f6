// The part of CUDA C++ that kernels/cuda uses, for a C++ compiler: included
// before each .cu.  The threads of a block run one after the other on the
// calling thread, in an order that the launch draws (host_kernels.cc); a phase
// (each_thread) runs all of them before the next starts.
#pragma once

#include <time.h>

#include <cstdint>
#include <vector>

#define ALQ_CUDA_SHIM
#define __global__
#define __device__
#define __shared__ static thread_local
#define __launch_bounds__(threads)
#define __grid_constant__

struct ShimIndex {
  unsigned x, y, z;
};
inline thread_local ShimIndex threadIdx, blockIdx, blockDim, gridDim;
// The order of this block's threads.
inline thread_local std::vector<unsigned> shim_threads;

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};

template <typename T>
T atomicAdd(T* at, T value) {
  return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}

template <typename T>
T atomicExch(T* at, T value) {
  return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);
}

template <typename T>
T atomicCAS(T* at, T expected, T value) {
  __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_SEQ_CST,
                              __ATOMIC_SEQ_CST);
  return expected;
}

template <typename T>
T atomicMin(T* at, T value) {
  T old = __atomic_load_n(at, __ATOMIC_SEQ_CST);
  while (value < old) {
    const T seen = atomicCAS(at, old, value);
    if (seen == old) break;
    old = seen;
  }
  return old;
}

template <typename T>
T atomicMax(T* at, T value) {
  T old = __atomic_load_n(at, __ATOMIC_SEQ_CST);
  while (value > old) {
    const T seen = atomicCAS(at, old, value);
    if (seen == old) break;
    old = seen;
  }
  return old;
}

// The atomics above are all sequentially consistent.
inline void __threadfence() {}

inline void __nanosleep(unsigned ns) {
  const timespec time = {0, static_cast<long>(ns)};
  nanosleep(&time, nullptr);
}

namespace aliquot::kernels {

template <class Phase>
void each_thread(const Phase& phase) {
  for (const unsigned t : shim_threads) {
    threadIdx = {t, 0, 0};
    phase();
  }
}

inline int64_t device_clock() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1000000000} + now.tv_nsec;
}

}  // namespace aliquot::kernels
