// cuBLAS on one stream, with a workspace of its own, by its documented ABI
// (versions 12 and 13).
#pragma once

#include "cuda/gpu.h"

namespace gpt::cuda {

struct Blas {
  // Loads the library: the hint cublas_library, one that is in the process, the
  // system's, then the hint library_dirs.  Throws Error with what was tried.
  Blas();
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  void start(void* stream, void* workspace, size_t bytes);
  void multiply(const Product& product) const;

 private:
  void check(int32_t status, const char* call) const;

  void* library_;
  void* handle_ = nullptr;
  int32_t (*create_)(void**) = nullptr;
  int32_t (*destroy_)(void*) = nullptr;
  int32_t (*set_stream_)(void*, void*) = nullptr;
  int32_t (*set_workspace_)(void*, void*, size_t) = nullptr;
  const char* (*text_)(int32_t) = nullptr;
  int32_t (*gemm_)(void*, int32_t, int32_t, int, int, int, const void*,
                   const void*, int32_t, int, const void*, int32_t, int,
                   const void*, void*, int32_t, int, int32_t,
                   int32_t) = nullptr;
};

}  // namespace gpt::cuda
