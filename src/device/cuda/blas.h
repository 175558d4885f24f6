// Matrix products on a CUDA device through cuBLAS, which is loaded on first
// use.  C = alpha A B + beta C, all row-major, enqueued on a stream.
//
// Sums are formed in f32 (f64 for f64) whatever the operands are; a C of f32
// under operands of bf16 receives them unrounded, so with beta = 1 it
// accumulates weight gradients.  One handle and one workspace per stream, made
// at its first product: later ones allocate nothing and can be captured.
// Cost: 2 m n k operations, one launch.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "base/context.h"
#include "device/cuda/blas_abi.h"
#include "device/cuda/port.h"

namespace aliquot {

// As it lies in memory; read as its transpose if flipped.
struct BlasOperand {
  const void* data = nullptr;
  int64_t rows = 0, cols = 0, ld = 0;
  bool flipped = false;
};

struct BlasProduct {
  BlasOperand a, b;
  void* c = nullptr;
  int64_t rows = 0, cols = 0, ld = 0;  // of c
  Dtype in = ALQ_F32, out = ALQ_F32;
  bool tf32 = false;  // f32 operands may be rounded to 11 bits
  double alpha = 1, beta = 0;
};

// From the matrices that a caller has (data, rows, cols, ld, flipped).
template <typename A, typename C>
BlasProduct blas_product(double alpha, const A& a, const A& b, double beta,
                         const C& c, Dtype in, Dtype out) {
  BlasProduct p;
  p.a = {a.data, a.rows, a.cols, a.ld, a.flipped};
  p.b = {b.data, b.rows, b.cols, b.ld, b.flipped};
  p.c = c.data;
  p.rows = c.rows;
  p.cols = c.cols;
  p.ld = c.ld;
  p.in = in;
  p.out = out;
  p.alpha = alpha;
  p.beta = beta;
  return p;
}

class Blas {
 public:
  // UNAVAILABLE says what was tried.
  static Result<std::shared_ptr<Blas>> open(std::shared_ptr<Context> context,
                                            std::shared_ptr<Device> device);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // stream null: done on return.
  Status gemm(Stream* stream, const BlasProduct& product);

 private:
  struct PerStream {
    blas::Handle handle = nullptr;
    std::unique_ptr<Memory> workspace;
  };
  Blas(std::shared_ptr<Context> context, std::shared_ptr<Device> device,
       CudaPort& port)
      : context_(std::move(context)), device_(std::move(device)), port_(port) {}
  Status load();
  Result<blas::Handle> handle(Stream& stream);
  Status call(blas::Handle handle, const BlasProduct& product);
  Status error(const char* what, int32_t result) const;

  const std::shared_ptr<Context> context_;
  const std::shared_ptr<Device> device_;
  CudaPort& port_;
  blas::Api api_;
  std::mutex mutex_;
  std::map<void*, PerStream> streams_;  // by CUstream
};

}  // namespace aliquot
