// The compiled kernels of kernels/cuda, as the driver's cuModuleLoadData takes
// them: machine code for each architecture of ALQ_CUDA_ARCHS and PTX of the
// newest.  Read-only data of the library that costs nothing until it is read.
#pragma once

#include <cstddef>

namespace aliquot::kernels {

struct CudaImage {
  const void* data;  // null when built without nvcc
  size_t bytes;      // 0 then
};

CudaImage cuda_image();

}  // namespace aliquot::kernels
