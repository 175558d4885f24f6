// Built without nvcc: there are no kernels for a GPU.
#include "kernels/cuda/image.h"

namespace aliquot::kernels {

CudaImage cuda_image() { return {nullptr, 0}; }

}  // namespace aliquot::kernels
