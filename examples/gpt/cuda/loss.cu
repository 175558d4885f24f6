// Cross-entropy (loss.h): a block per row.  The host adds the rows' losses.
#include "cuda/device.h"

namespace gpt::cuda {
namespace {

template <class C>
struct Softmax {
  C top, sum;
};

template <class C>
__device__ Softmax<C> softmax(int64_t cols, C* cells, const C* z) {
  const C top = block_max<C>(cols, cells, z);
  const C sum =
      block_sum<C>(cols, cells, [&](int64_t j) { return exp_of(z[j] - top); });
  return {top, sum};
}

template <class T>
__device__ void loss(const LossArgs& a) {
  using C = Compute<T>;
  __shared__ C cells[kBlock];
  for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
    const C* z = static_cast<const C*>(a.logits) + r * a.cols;
    const Softmax<C> of = softmax<C>(a.cols, cells, z);
    each_of_block(1, [&](int64_t) {
      a.losses[r] = static_cast<double>(of.top) +
                    std::log(static_cast<double>(of.sum)) -
                    static_cast<double>(z[a.targets[r]]);
    });
  }
}

template <class T>
__device__ void loss_backward(const LossBackwardArgs& a) {
  using C = Compute<T>;
  __shared__ C cells[kBlock];
  for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
    const C* z = static_cast<const C*>(a.logits) + r * a.cols;
    T* d = static_cast<T*>(a.dlogits) + r * a.cols;
    const Softmax<C> of = softmax<C>(a.cols, cells, z);
    const C scale = static_cast<C>(a.factor) / of.sum;
    const int64_t target = a.targets[r];
    each_of_block(a.cols, [&](int64_t j) {
      const C e = exp_of(z[j] - of.top);
      d[j] = down<T>((j == target ? e - of.sum : e) * scale);
    });
  }
}

}  // namespace

GPT_KERNEL(loss, LossArgs, loss)
GPT_KERNEL(loss_backward, LossBackwardArgs, loss_backward)

}  // namespace gpt::cuda
