#include "swiglu.h"

namespace gpt {
namespace {

template <class C>
C sigmoid(C x) {
  return C{1} / (C{1} + exp_of(-x));
}

}  // namespace

template <class T>
void swiglu(int64_t count, const T* gate, const T* up_, T* y) {
  for (int64_t i = 0; i < count; ++i) {
    const auto g = up(gate[i]);
    y[i] = down<T>(g * sigmoid(g) * up(up_[i]));
  }
}

template <class T>
void swiglu_backward(int64_t count, const T* dy, T* gate, T* up_) {
  using C = Compute<T>;
  for (int64_t i = 0; i < count; ++i) {
    const C g = up(gate[i]), u = up(up_[i]), d = up(dy[i]);
    const C s = sigmoid(g);
    gate[i] = down<T>(d * u * s * (C{1} + g * (C{1} - s)));
    up_[i] = down<T>(d * g * s);
  }
}

#define GPT_INSTANTIATE(T)                                  \
  template void swiglu<T>(int64_t, const T*, const T*, T*); \
  template void swiglu_backward<T>(int64_t, const T*, T*, T*);
GPT_INSTANTIATE(double)
GPT_INSTANTIATE(float)
GPT_INSTANTIATE(Bf16)
#undef GPT_INSTANTIATE

}  // namespace gpt
