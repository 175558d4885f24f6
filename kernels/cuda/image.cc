// The image is assembled into read-only data.
#include "kernels/cuda/image.h"

asm(".pushsection .alq_cuda_image, \"a\"\n"
    ".balign 64\n"
    ".local alq_cuda_image_begin\n"
    "alq_cuda_image_begin:\n"
    ".incbin \"" ALQ_CUDA_IMAGE
    "\"\n"
    ".local alq_cuda_image_end\n"
    "alq_cuda_image_end:\n"
    ".popsection\n");

extern "C" const char alq_cuda_image_begin[];
extern "C" const char alq_cuda_image_end[];

namespace aliquot::kernels {

CudaImage cuda_image() {
  return {alq_cuda_image_begin,
          static_cast<size_t>(alq_cuda_image_end - alq_cuda_image_begin)};
}

}  // namespace aliquot::kernels
