// Elements from one array to another, bit by bit as they are.
#pragma once

#include "kernels/cuda/stream.h"

namespace aliquot::kernels {

template <typename S>
struct MoveBody {
  S* dst;
  const S* src;

  template <int N>
  __device__ Lead<N> lead() const {
    Lead<N> lead;
    lead.add(dst);
    lead.add(src);
    return lead;
  }

  template <int N>
  __device__ Pack<S, N> load(int64_t i) const {
    return load_pack<N>(src + i);
  }

  template <int N>
  __device__ void finish(int64_t i, const Pack<S, N>& x) const {
    store_pack<N>(dst + i, x);
  }
};

}  // namespace aliquot::kernels
