// The compiled kernels of the model for GPUs, as cuModuleLoadData takes them.
#pragma once

#include <cstddef>

namespace gpt::cuda {

struct Image {
  const void* data;  // null when built without nvcc
  size_t bytes;
};

Image built_in_image();

}  // namespace gpt::cuda
