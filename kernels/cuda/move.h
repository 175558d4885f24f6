// Elements from one array to another, bit by bit as they are.
#pragma once

#include "kernels/cuda/stream.h"

namespace aliquot::kernels {

template <typename S>
struct MoveBody : ReadsAndWrites<S, S> {
  template <int N>
  __device__ void finish(int64_t i, const Pack<S, N>& x) const {
    store_pack<N>(this->dst + i, x);
  }
};

}  // namespace aliquot::kernels
