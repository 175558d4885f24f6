// The part of cuBLAS' ABI that is used, in own words: versions 12 and 13.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aliquot::blas {

using Handle = struct BlasHandleOpaque*;

constexpr int32_t kSuccess = 0;
constexpr int32_t kNotInitialized = 1, kAllocFailed = 3, kInvalidValue = 7,
                  kNotSupported = 15;

enum Operation : int32_t { kPlain = 0, kTransposed = 1 };

enum DataType : int32_t {
  kF32 = 0,
  kF64 = 1,
  kF16 = 2,
  kBf16 = 14,
};

enum ComputeType : int32_t {
  kCompute32 = 68,
  kComputeTf32 = 77,
  kCompute64 = 70,
};

constexpr int32_t kDefaultAlgorithm = -1;

static_assert(sizeof(Operation) == 4 && sizeof(DataType) == 4 &&
              sizeof(ComputeType) == 4);

struct Api {
  int32_t (*create)(Handle*) = nullptr;
  int32_t (*destroy)(Handle) = nullptr;
  int32_t (*get_version)(Handle, int*) = nullptr;
  int32_t (*set_stream)(Handle, void*) = nullptr;
  int32_t (*set_workspace)(Handle, void*, size_t) = nullptr;
  const char* (*status_string)(int32_t) = nullptr;
  // Column-major; alpha and beta in host memory, of the compute type.
  int32_t (*gemm)(Handle, Operation, Operation, int, int, int, const void*,
                  const void*, DataType, int, const void*, DataType, int,
                  const void*, void*, DataType, int, ComputeType,
                  int32_t) = nullptr;
};

}  // namespace aliquot::blas
