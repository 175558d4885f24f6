// Rows of the embedding, the sum of their gradients, and gradients put into
// their place.  Cost: one pass; the sum reads every row once per token, for no
// two threads may add to one element.
#include "cuda/device.h"

namespace gpt::cuda {
namespace {

template <class T>
__device__ void embed(const EmbedArgs& a) {
  const T* table = static_cast<const T*>(a.table);
  T* x = static_cast<T*>(a.x);
  each_element(a.rows * a.cols, [&](int64_t i) {
    x[i] = table[a.tokens[i / a.cols] * a.cols + i % a.cols];
  });
}

template <class T>
__device__ void embed_backward(const EmbedBackwardArgs& a) {
  using C = Compute<T>;
  const T* d = static_cast<const T*>(a.d);
  each_element(a.vocab * a.cols, [&](int64_t i) {
    C sum{};
    for (int64_t r = 0; r < a.rows; ++r) {
      if (a.tokens[r] == i / a.cols) sum += up(d[r * a.cols + i % a.cols]);
    }
    static_cast<C*>(a.sum)[i] = sum;
  });
}

template <class T>
__device__ void put(const PutArgs& a) {
  const auto* sum = static_cast<const Compute<T>*>(a.sum);
  T* to = static_cast<T*>(a.to);
  each_element(a.count, [&](int64_t i) {
    to[i] = down<T>(a.add != 0 ? sum[i] + up(to[i]) : sum[i]);
  });
}

}  // namespace

GPT_KERNEL(embed, EmbedArgs, embed)
GPT_KERNEL(embed_backward, EmbedBackwardArgs, embed_backward)
GPT_KERNEL(put, PutArgs, put)

}  // namespace gpt::cuda
