// The loop of every element-wise kernel: a grid of any size strides over the
// array, kUnroll accesses of N elements in flight per thread, and single
// elements before the first aligned pack, after the last one, or throughout
// where the arrays can not be aligned together.
//
// A body has
//   Lead<N> lead<N>()            of its arrays
//   auto load<N>(i)              reads what elements i to i + N need
//   void finish<N>(i, loaded)    computes and writes them
// An element is written by the thread that has read it, and no other reads it.
#pragma once

#include "kernels/cuda/memory.h"

namespace aliquot::kernels {

// What a body that reads one array has of it.
template <typename S>
struct ReadsArray {
  const S* src;

  template <int N>
  __device__ Lead<N> lead() const {
    Lead<N> lead;
    lead.add(src);
    return lead;
  }

  template <int N>
  __device__ Pack<S, N> load(int64_t i) const {
    return load_pack<N>(src + i);
  }
};

// And one that writes another.
template <typename To, typename From>
struct ReadsAndWrites {
  To* dst;
  const From* src;

  template <int N>
  __device__ Lead<N> lead() const {
    Lead<N> lead;
    lead.add(dst);
    lead.add(src);
    return lead;
  }

  template <int N>
  __device__ Pack<From, N> load(int64_t i) const {
    return load_pack<N>(src + i);
  }
};

template <int N, int kUnroll, class Body>
__device__ inline void stream_packs(const Body& body, int64_t first,
                                    int64_t packs) {
  const int64_t step = grid_threads();
  int64_t k = grid_thread();
  for (; k + (kUnroll - 1) * step < packs; k += kUnroll * step) {
    using Loaded = decltype(body.template load<N>(0));
    Loaded loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      loaded[u] = body.template load<N>(first + (k + u * step) * N);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      body.template finish<N>(first + (k + u * step) * N, loaded[u]);
    }
  }
  for (; k < packs; k += step) {
    const int64_t i = first + k * N;
    body.template finish<N>(i, body.template load<N>(i));
  }
}

template <int N, int kUnroll, class Body>
__device__ inline void stream(const Body& body, int64_t count) {
  int64_t lead = body.template lead<N>().value();
  int64_t packs = 0;
  if (lead == Lead<N>::kNever || lead + N > count) {
    lead = count;
  } else {
    packs = (count - lead) / N;
    stream_packs<N, kUnroll>(body, lead, packs);
  }
  const int64_t singles = count - packs * N;
  for (int64_t k = grid_thread(); k < singles; k += grid_threads()) {
    const int64_t i = k < lead ? k : k + packs * N;
    body.template finish<1>(i, body.template load<1>(i));
  }
}

// Elements of an access of 16 bytes of the widest type.
template <typename... S>
__device__ constexpr int elements_per_access() {
  int widest = 1;
  ((widest = static_cast<int>(sizeof(S)) > widest ? static_cast<int>(sizeof(S))
                                                  : widest),
   ...);
  return 16 / widest;
}

}  // namespace aliquot::kernels
