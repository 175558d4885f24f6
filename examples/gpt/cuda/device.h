// What the kernels need of the language.  nvcc compiles them; so does a C++
// compiler that a shim is included for before (it says GPT_CUDA_SHIM or
// ALQ_CUDA_SHIM and brings each_thread).
//
// A kernel is written per thread, or in phases: each_thread(f) runs f on all
// threads of the block and lets none go on before all are done.  Sums are taken
// in a fixed order: equal values give equal bits.
#pragma once

#include "cuda/args.h"
#include "number.h"

namespace gpt::cuda {

#if defined(__CUDACC__)
template <class Phase>
__device__ inline void each_thread(const Phase& phase) {
  phase();
  __syncthreads();
}
#else
using aliquot::kernels::each_thread;
#endif

#define GPT_KERNEL_OF(name, type, T, Args, body)               \
  extern "C" __global__ void __launch_bounds__(kBlock)         \
      gpt_##name##_##type(const __grid_constant__ Args args) { \
    body<T>(args);                                             \
  }
// The three kernels of one name.
#define GPT_KERNEL(name, Args, body)           \
  GPT_KERNEL_OF(name, f64, double, Args, body) \
  GPT_KERNEL_OF(name, f32, float, Args, body)  \
  GPT_KERNEL_OF(name, bf16, ::gpt::Bf16, Args, body)

__device__ inline int64_t grid_thread() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline int64_t grid_threads() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
}
__device__ inline int64_t thread() { return threadIdx.x; }

// f(i) for every i below count that is this thread's.
template <class F>
__device__ inline void each_element(int64_t count, const F& f) {
  for (int64_t i = grid_thread(); i < count; i += grid_threads()) f(i);
}

// f(i) for every i below count, shared among the block's threads.
template <class F>
__device__ inline void each_of_block(int64_t count, const F& f) {
  each_thread([&] {
    for (int64_t i = thread(); i < count; i += kBlock) f(i);
  });
}

// Joins what the threads have in `cells`, in a tree; the result is in all.
template <class C, class Join>
__device__ inline C join_block(C* cells, const Join& join) {
  for (int64_t half = kBlock / 2; half > 0; half /= 2) {
    each_thread([&] {
      if (thread() < half) {
        cells[thread()] = join(cells[thread()], cells[thread() + half]);
      }
    });
  }
  C result{};
  each_thread([&] { result = cells[0]; });
  return result;
}

// The sum of term(0) ... term(count - 1).
template <class C, class Term>
__device__ inline C block_sum(int64_t count, C* cells, const Term& term) {
  each_thread([&] {
    C sum{};
    for (int64_t i = thread(); i < count; i += kBlock) sum += term(i);
    cells[thread()] = sum;
  });
  return join_block(cells, [](C a, C b) { return a + b; });
}

// The largest of count >= 1 values.
template <class C>
__device__ inline C block_max(int64_t count, C* cells, const C* x) {
  each_thread([&] {
    C most = x[0];
    for (int64_t i = thread(); i < count; i += kBlock) {
      most = most < x[i] ? x[i] : most;
    }
    cells[thread()] = most;
  });
  return join_block(cells, [](C a, C b) { return a < b ? b : a; });
}

}  // namespace gpt::cuda
