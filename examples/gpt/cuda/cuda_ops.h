// The model's operations on a GPU.
#pragma once

#include "cuda/gpu.h"
#include "ops.h"

namespace gpt {

// T: double, float or Bf16.
template <class T>
std::unique_ptr<Ops<T>> make_cuda_ops(const Shape& shape, cuda::Place place);

}  // namespace gpt
