// Matrix products over the stand-ins against loops in f64.
#include "device/cuda/blas.h"

#include <boost/test/unit_test.hpp>
#include <cmath>

#include "kernels/arithmetic/half.h"
#include "multi/nccl/gpu_ranks.h"

namespace aliquot::test {
namespace {

double element(const Buffer& data, Dtype dtype, int64_t i) {
  const std::byte* at = data.data() + i * dtype_size(dtype);
  double wide = 0;
  float f = 0;
  kernels::BF16 half{};
  switch (dtype) {
    case ALQ_F64: std::memcpy(&wide, at, sizeof wide); return wide;
    case ALQ_F32: std::memcpy(&f, at, sizeof f); return f;
    default:
      std::memcpy(&half, at, sizeof half);
      return kernels::bf16_to_f32(half);
  }
}

struct Shape {
  Dtype in, out;
  bool flip_a, flip_b, tf32;
  double beta;
};

// What a caller such as a model has.
struct Matrix {
  const void* data;
  int64_t rows, cols, ld;
  bool flipped;
};
struct Result_ {
  void* data;
  int64_t rows, cols, ld;
};

void product(Rank& rank, Gpu& gpu, Blas& blas, Shape s, Stream* stream) {
  const int64_t m = 13, n = 7, k = 21, pad = 3;
  auto rows = [](bool flip, int64_t a, int64_t b) { return flip ? b : a; };
  const int64_t ar = rows(s.flip_a, m, k), ac = rows(s.flip_a, k, m) + pad,
                br = rows(s.flip_b, k, n), bc = rows(s.flip_b, n, k) + pad,
                cc = n + pad;
  const Buffer a = filled(s.in, ar * ac, 0), b = filled(s.in, br * bc, 1),
               c = filled(s.out, m * cc, 2);
  auto bytes = [](const Buffer& x) { return static_cast<int64_t>(x.size()); };
  GpuBytes da(rank, gpu, bytes(a)), db(rank, gpu, bytes(b)),
      dc(rank, gpu, bytes(c));
  da.set(a);
  db.set(b);
  dc.set(c);
  BlasProduct p =
      blas_product(0.5, Matrix{da.data(), ar, ac - pad, ac, s.flip_a},
                   Matrix{db.data(), br, bc - pad, bc, s.flip_b}, s.beta,
                   Result_{dc.data(), m, n, cc}, s.in, s.out);
  p.tf32 = s.tf32;
  rank.check_ok(blas.gemm(stream, p), "gemm");
  const Buffer got = dc.get(stream, 0, bytes(c));
  double worst = 0;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < cc; ++j) {
      double want = element(c, s.out, i * cc + j), size = 1;
      if (j < n) {
        double sum = 0;
        for (int64_t l = 0; l < k; ++l) {
          double x = element(a, s.in, s.flip_a ? l * ac + i : i * ac + l);
          double y = element(b, s.in, s.flip_b ? j * bc + l : l * bc + j);
          sum += x * y;
          size += std::abs(x * y);
        }
        want = 0.5 * sum + s.beta * want;
      }
      double error = std::abs(element(got, s.out, i * cc + j) - want) / size;
      worst = std::max(worst, error);
    }
  }
  double limit = s.out == ALQ_F64 ? 1e-15 : s.out == ALQ_F32 ? 1e-7 : 4e-3;
  if (s.tf32) limit = 1e-3;
  rank.check(worst <= limit,
             fmt::format("{} to {}: error {} over {}", dtype_name(s.in),
                         dtype_name(s.out), worst, limit));
}

BOOST_AUTO_TEST_CASE(matrix_products) {
  GpuOptions options;
  options.ranks.size = 1;
  std::string text = run_gpu(options, [](Rank& rank, Gpu& gpu) {
    auto blas = Blas::open(rank.context, gpu.device);
    rank.check_ok(blas.status(), "cuBLAS");
    if (!blas.ok()) return;
    for (int flips = 0; flips < 4; ++flips) {
      bool a = (flips & 1) != 0, b = (flips & 2) != 0;
      for (double beta : {0.0, 1.0}) {
        for (Dtype dtype : {ALQ_F32, ALQ_F64, ALQ_BF16}) {
          product(rank, gpu, **blas, {dtype, dtype, a, b, false, beta},
                  gpu.stream.get());
        }
        product(rank, gpu, **blas, {ALQ_BF16, ALQ_F32, a, b, false, beta},
                gpu.stream.get());
        product(rank, gpu, **blas, {ALQ_F32, ALQ_F32, a, b, true, beta},
                nullptr);
      }
    }
    BlasProduct bad;
    bad.rows = 3;
    bad.cols = bad.ld = 2;
    Status status = (*blas)->gemm(nullptr, bad);
    rank.check(status.code() == ALQ_INVALID_ARGUMENT, status.message());
    bad = {};
    bad.in = ALQ_F32;
    bad.out = ALQ_BF16;
    status = (*blas)->gemm(nullptr, bad);
    rank.check(status.code() == ALQ_UNSUPPORTED, status.message());
    bool found = false;
    for (const LibraryRecord& r : rank.context->libraries.records()) {
      found =
          found || (r.name == "cublas" && r.loaded && r.version == "13.0.0");
    }
    rank.check(found, "the version is recorded");
  });
  BOOST_TEST(text.empty(), text);
}

}  // namespace
}  // namespace aliquot::test
