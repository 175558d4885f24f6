// The image is assembled into read-only data.
#include "cuda/image.h"

asm(".pushsection .gpt_cuda_image, \"a\"\n"
    ".balign 64\n"
    ".local gpt_cuda_image_begin\n"
    "gpt_cuda_image_begin:\n"
    ".incbin \"" GPT_CUDA_IMAGE
    "\"\n"
    ".local gpt_cuda_image_end\n"
    "gpt_cuda_image_end:\n"
    ".popsection\n");

extern "C" const char gpt_cuda_image_begin[];
extern "C" const char gpt_cuda_image_end[];

gpt::cuda::Image gpt::cuda::built_in_image() {
  return {gpt_cuda_image_begin,
          static_cast<size_t>(gpt_cuda_image_end - gpt_cuda_image_begin)};
}
