// The norm of rmsnorm.h: a block per row, and for the weight's gradient a
// thread per column.
#include "cuda/device.h"

namespace gpt::cuda {
namespace {

template <class T>
__device__ void rmsnorm(const RmsnormArgs& a) {
  using C = Compute<T>;
  __shared__ C cells[kBlock];
  const T* w = static_cast<const T*>(a.w);
  for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + r * a.cols;
    T* y = static_cast<T*>(a.y) + r * a.cols;
    const C squares = block_sum<C>(
        a.cols, cells, [&](int64_t j) { return up(x[j]) * up(x[j]); });
    C* scale = static_cast<C*>(a.scale) + r;
    each_of_block(1, [&](int64_t) {
      *scale = C{1} / std::sqrt(squares / static_cast<C>(a.cols) +
                                static_cast<C>(1e-5));
    });
    const C s = *scale;
    each_of_block(a.cols,
                  [&](int64_t j) { y[j] = down<T>(up(x[j]) * s * up(w[j])); });
  }
}

template <class T>
__device__ void rmsnorm_backward(const RmsnormBackwardArgs& a) {
  using C = Compute<T>;
  __shared__ C cells[kBlock];
  const T* w = static_cast<const T*>(a.w);
  for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
    const T* x = static_cast<const T*>(a.x) + r * a.cols;
    const C* dy = static_cast<const C*>(a.dy) + r * a.cols;
    T* dx = static_cast<T*>(a.dx) + r * a.cols;
    const C s = static_cast<const C*>(a.scale)[r];
    const C sum = block_sum<C>(
        a.cols, cells, [&](int64_t j) { return dy[j] * up(w[j]) * up(x[j]); });
    const C pull = s * s * (sum / static_cast<C>(a.cols));
    each_of_block(a.cols, [&](int64_t j) {
      dx[j] = down<T>(up(dx[j]) + s * (dy[j] * up(w[j]) - up(x[j]) * pull));
    });
  }
}

template <class T>
__device__ void rmsnorm_weight(const RmsnormWeightArgs& a) {
  using C = Compute<T>;
  const T* x = static_cast<const T*>(a.x);
  const C* dy = static_cast<const C*>(a.dy);
  const C* scale = static_cast<const C*>(a.scale);
  each_element(a.cols, [&](int64_t j) {
    C sum{};
    for (int64_t r = 0; r < a.rows; ++r) {
      sum += dy[r * a.cols + j] * up(x[r * a.cols + j]) * scale[r];
    }
    static_cast<C*>(a.dw)[j] = sum;
  });
}

}  // namespace

GPT_KERNEL(rmsnorm, RmsnormArgs, rmsnorm)
GPT_KERNEL(rmsnorm_backward, RmsnormBackwardArgs, rmsnorm_backward)
GPT_KERNEL(rmsnorm_weight, RmsnormWeightArgs, rmsnorm_weight)

}  // namespace gpt::cuda
