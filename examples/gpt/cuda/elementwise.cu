// Rotary positions (rope.h) in place, and the gated unit (swiglu.h).
#include "cuda/device.h"

namespace gpt::cuda {
namespace {

template <class T>
__device__ void rope(const RopeArgs& a) {
  using C = Compute<T>;
  const C* cosines = static_cast<const C*>(a.cos);
  const C* sines = static_cast<const C*>(a.sin);
  each_element(a.rows * a.heads * a.half, [&](int64_t i) {
    const int64_t at = i % a.half, head = i / a.half;
    const int64_t turn = head / a.heads % a.seq * a.half + at;
    T* x = static_cast<T*>(a.x) + head * 2 * a.half + at;
    const C u = up(x[0]), v = up(x[a.half]);
    const C s = a.back != 0 ? -sines[turn] : sines[turn];
    x[0] = down<T>(u * cosines[turn] - v * s);
    x[a.half] = down<T>(v * cosines[turn] + u * s);
  });
}

template <class C>
__device__ C sigmoid(C x) {
  return C{1} / (C{1} + exp_of(-x));
}

template <class T>
__device__ void swiglu(const SwigluArgs& a) {
  const T* gate = static_cast<const T*>(a.gate);
  const T* other = static_cast<const T*>(a.up);
  each_element(a.count, [&](int64_t i) {
    const auto g = up(gate[i]);
    static_cast<T*>(a.y)[i] = down<T>(g * sigmoid(g) * up(other[i]));
  });
}

template <class T>
__device__ void swiglu_backward(const SwigluBackwardArgs& a) {
  using C = Compute<T>;
  T* gate = static_cast<T*>(a.gate);
  T* other = static_cast<T*>(a.up);
  each_element(a.count, [&](int64_t i) {
    const C g = up(gate[i]), u = up(other[i]);
    const C d = up(static_cast<const T*>(a.dy)[i]);
    const C s = sigmoid(g);
    gate[i] = down<T>(d * u * s * (C{1} + g * (C{1} - s)));
    other[i] = down<T>(d * g * s);
  });
}

}  // namespace

GPT_KERNEL(rope, RopeArgs, rope)
GPT_KERNEL(swiglu, SwigluArgs, swiglu)
GPT_KERNEL(swiglu_backward, SwigluBackwardArgs, swiglu_backward)

}  // namespace gpt::cuda
