// What every kernel needs of the language.  The same sources are compiled by
// nvcc and, through a shim that is included before, by a C++ compiler.
//
// A kernel is written per thread, or in phases: each_thread(f) runs f on all
// threads of the block and lets none go on before all are done.  Nothing but
// shared memory is handed from one phase to the next.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

#if !defined(__CUDACC__) && !defined(ALQ_CUDA_SHIM)
#error "compile with nvcc, or include the shim before"
#endif

namespace aliquot::kernels {

// The largest block that cuda_plan asks for.
inline constexpr int kCudaBlock = 256;

#define ALQ_KERNEL(name, Args)                             \
  extern "C" __global__ void __launch_bounds__(kCudaBlock) \
      name(const __grid_constant__ Args args)

// For what is called rarely, and would be inlined often.
#if defined(__CUDACC__)
#define ALQ_NOINLINE __noinline__
#else
#define ALQ_NOINLINE
#endif

// This thread in the grid, and the number of threads.
__device__ inline int64_t grid_thread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t grid_threads() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

#if defined(__CUDACC__)
template <class Phase>
__device__ inline void each_thread(const Phase& phase) {
  phase();
  __syncthreads();
}

__device__ inline int64_t device_clock() {
  int64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}
#endif

}  // namespace aliquot::kernels
