#include "loss.h"

#include <cmath>
#include <vector>

#include "lanes.h"

namespace gpt {
namespace {

// e^(z - max) of a row into e; returns the sum.
template <class C>
C exponentials(int64_t cols, const C* z, C* e, C* top) {
  const C highest = lane_max(cols, z);
  for (int64_t j = 0; j < cols; ++j) e[j] = exp_of(z[j] - highest);
  *top = highest;
  return lane_sum<C>(cols, [e](int64_t j) { return e[j]; });
}

}  // namespace

template <class T>
double cross_entropy(Rows size, const uint8_t* targets,
                     const Compute<T>* logits) {
  using C = Compute<T>;
  std::vector<C> e(static_cast<size_t>(size.cols));
  double total = 0;
  for (int64_t r = 0; r < size.rows; ++r) {
    const C* z = logits + r * size.cols;
    C top;
    const C sum = exponentials(size.cols, z, e.data(), &top);
    total += static_cast<double>(top) + std::log(static_cast<double>(sum)) -
             static_cast<double>(z[targets[r]]);
  }
  return total;
}

template <class T>
void cross_entropy_backward(Rows size, const uint8_t* targets, double factor,
                            const Compute<T>* logits, T* dlogits) {
  using C = Compute<T>;
  std::vector<C> space(static_cast<size_t>(size.cols));
  C* e = space.data();
  for (int64_t r = 0; r < size.rows; ++r) {
    C top;
    const C sum = exponentials(size.cols, logits + r * size.cols, e, &top);
    const C scale = static_cast<C>(factor) / sum;
    e[targets[r]] -= sum;
    T* d = dlogits + r * size.cols;
    for (int64_t j = 0; j < size.cols; ++j) d[j] = down<T>(e[j] * scale);
  }
}

#define GPT_INSTANTIATE(T)                                                   \
  template double cross_entropy<T>(Rows, const uint8_t*, const Compute<T>*); \
  template void cross_entropy_backward<T>(Rows, const uint8_t*, double,      \
                                          const Compute<T>*, T*);
GPT_INSTANTIATE(double)
GPT_INSTANTIATE(float)
GPT_INSTANTIATE(Bf16)
#undef GPT_INSTANTIATE

}  // namespace gpt
