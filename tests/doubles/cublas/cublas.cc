// The stand-in's libcublas: the few functions that the library uses, with the
// products formed in f64 on the stream's thread and rounded once.  A handle
// without a workspace of its own, or on the legacy stream, is a violation: such
// a product allocates or waits.
#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "device/cuda/blas_abi.h"
#include "kernels/arithmetic/half.h"

#define BLAS_API extern "C" __attribute__((visibility("default")))

using namespace aliquot::blas;  // NOLINT
namespace kernels = aliquot::kernels;

namespace {

struct State {
  bool live = true;
  void* stream = nullptr;
  void* workspace = nullptr;
};

template <typename F>
F driver(const char* symbol) {
  return reinterpret_cast<F>(
      dlsym(dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW), symbol));
}

int32_t violation(const char* text) {
  static auto report = driver<void (*)(const char*)>("double_violation");
  if (report != nullptr) {
    report(text);
  } else {
    std::fprintf(stderr, "double: violation: %s\n", text);
  }
  return kInvalidValue;
}

State* as_state(Handle handle) { return reinterpret_cast<State*>(handle); }

struct Gemm {
  Operation op_a, op_b;
  int m, n, k;
  double alpha, beta;
  const void *a, *b;
  void* c;
  int lda, ldb, ldc;
  DataType in, out;
  bool tf32;
};

double load(const void* data, DataType type, int64_t i) {
  switch (type) {
    case kF64: return static_cast<const double*>(data)[i];
    case kF32: return static_cast<double>(static_cast<const float*>(data)[i]);
    case kF16:
      return static_cast<double>(
          kernels::f16_to_f32(static_cast<const kernels::F16*>(data)[i]));
    case kBf16:
      return static_cast<double>(
          kernels::bf16_to_f32(static_cast<const kernels::BF16*>(data)[i]));
  }
  return std::nan("");
}

void store(void* data, DataType type, int64_t i, double x) {
  switch (type) {
    case kF64: static_cast<double*>(data)[i] = x; return;
    case kF32: static_cast<float*>(data)[i] = static_cast<float>(x); return;
    case kF16:
      static_cast<kernels::F16*>(data)[i] =
          kernels::f32_to_f16(kernels::f64_to_f32_odd(x));
      return;
    case kBf16:
      static_cast<kernels::BF16*>(data)[i] =
          kernels::f32_to_bf16(kernels::f64_to_f32_odd(x));
      return;
  }
}

// Rounded to the 10 bits of mantissa that a tensor core reads.
double to_tf32(double x) {
  auto f = static_cast<float>(x);
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  if (!std::isfinite(f)) return x;
  bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
  std::memcpy(&f, &bits, sizeof f);
  return static_cast<double>(f);
}

void run(void* argument) {
  const Gemm& g = *static_cast<Gemm*>(argument);
  for (int j = 0; j < g.n; ++j) {
    for (int i = 0; i < g.m; ++i) {
      double sum = 0;
      for (int l = 0; l < g.k; ++l) {
        int64_t at =
            g.op_a == kPlain ? i + int64_t{l} * g.lda : l + int64_t{i} * g.lda;
        int64_t bt =
            g.op_b == kPlain ? l + int64_t{j} * g.ldb : j + int64_t{l} * g.ldb;
        double x = load(g.a, g.in, at), y = load(g.b, g.in, bt);
        sum += g.tf32 ? to_tf32(x) * to_tf32(y) : x * y;
      }
      int64_t ct = i + int64_t{j} * g.ldc;
      double old = g.beta == 0 ? 0 : g.beta * load(g.c, g.out, ct);
      store(g.c, g.out, ct, g.alpha * sum + old);
    }
  }
}

}  // namespace

BLAS_API int32_t cublasCreate_v2(Handle* handle) {
  *handle = reinterpret_cast<Handle>(new State());
  return kSuccess;
}

BLAS_API int32_t cublasDestroy_v2(Handle handle) {
  State* state = as_state(handle);
  if (!state->live) return violation("a cuBLAS handle is destroyed twice");
  state->live = false;  // kept, so that a late use is noticed
  return kSuccess;
}

BLAS_API int32_t cublasGetVersion_v2(Handle, int* version) {
  *version = 130000;
  return kSuccess;
}

BLAS_API int32_t cublasSetStream_v2(Handle handle, void* stream) {
  as_state(handle)->stream = stream;
  as_state(handle)->workspace = nullptr;
  return kSuccess;
}

BLAS_API int32_t cublasSetWorkspace_v2(Handle handle, void* data,
                                       size_t bytes) {
  if (reinterpret_cast<uintptr_t>(data) % 256 != 0 || bytes == 0) {
    return violation("a cuBLAS workspace that is not aligned to 256 bytes");
  }
  as_state(handle)->workspace = data;
  return kSuccess;
}

BLAS_API const char* cublasGetStatusString(int32_t status) {
  switch (status) {
    case kSuccess: return "CUBLAS_STATUS_SUCCESS";
    case kAllocFailed: return "CUBLAS_STATUS_ALLOC_FAILED";
    case kInvalidValue: return "CUBLAS_STATUS_INVALID_VALUE";
    case kNotSupported: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_UNKNOWN";
  }
}

BLAS_API int32_t cublasGemmEx(Handle handle, Operation op_a, Operation op_b,
                              int m, int n, int k, const void* alpha,
                              const void* a, DataType a_type, int lda,
                              const void* b, DataType b_type, int ldb,
                              const void* beta, void* c, DataType c_type,
                              int ldc, ComputeType compute, int32_t) {
  State* state = as_state(handle);
  if (!state->live) return violation("a product with a destroyed handle");
  if (state->stream == nullptr) {
    return violation("a product on the legacy default stream");
  }
  if (state->workspace == nullptr) {
    return violation("a product without a workspace of its own");
  }
  bool wide = compute == kCompute64;
  bool types = a_type == b_type && wide == (a_type == kF64) &&
               (c_type == a_type || (c_type == kF32 && !wide));
  if (!types || (compute == kComputeTf32 && a_type != kF32)) {
    return kNotSupported;
  }
  if (lda < (op_a == kPlain ? m : k) || ldb < (op_b == kPlain ? k : n) ||
      ldc < m || m < 0 || n < 0 || k < 0) {
    return kInvalidValue;
  }
  auto scalar = [wide](const void* p) {
    return wide ? *static_cast<const double*>(p)
                : static_cast<double>(*static_cast<const float*>(p));
  };
  // A graph may run it at any time: it is never freed.
  auto* g = new Gemm{
      op_a, op_b, m,   n,   k,      scalar(alpha), scalar(beta),           a, b,
      c,    lda,  ldb, ldc, a_type, c_type,        compute == kComputeTf32};
  static auto enqueue =
      driver<int (*)(void*, void (*)(void*), void*)>("double_enqueue");
  if (enqueue == nullptr) return kNotInitialized;
  return enqueue(state->stream, run, g) == 0 ? kSuccess : kNotInitialized;
}
