// One transformer block:
//   h = x + attention(rope(q), rope(k), v) Wo,   q, k, v = norm1(x) Wq, Wk, Wv
//   y = h + swiglu(norm2(h) Wgate, norm2(h) Wup) Wdown
// and its hand-written backward pass, which writes every gradient straight into
// the place that the unit view lends and says at once when one is final.
// Cost: 2 rows params forward, twice that backward, and the attention.
#pragma once

#include <cstdint>

#include "host.h"
#include "ops.h"
#include "shape.h"

namespace gpt {

// What the forward pass of a block keeps for its backward pass.
template <class T>
struct BlockState {
  T *n1, *q, *k, *v, *probs, *o, *h, *n2, *gate, *up, *act;
  Compute<T>*scale1, *scale2;
};

template <class T>
class Block {
 public:
  using C = Compute<T>;
  Block(const Shape& shape, Ops<T>& ops);

  BlockState<T> make_state() const;

  // x, y: [rows, hidden]; y may not be x.
  void forward(UnitView unit, const T* x, const BlockState<T>& state, T* y);

  // d holds dy and becomes dx.  gate and up of the state are overwritten.
  void backward(const Grads<T>& grads, const T* x, const BlockState<T>& state,
                T* d);

 private:
  void linear(const T* x, int64_t in_size, const void* w, int64_t out_size,
              T* y);
  void weight_grad(const Grads<T>& grads, int64_t i, In<T> dy, In<T> x);
  void norm_grad(const Grads<T>& grads, int64_t i);
  void ffn_backward(const Grads<T>& grads, const BlockState<T>& s, T* d);
  void attention_backward(const Grads<T>& grads, const T* x,
                          const BlockState<T>& s, T* d);

  Shape s_;
  Ops<T>& ops_;
  T *dact_, *dout_, *dq_, *dk_, *dv_;
  C *dnorm_, *dweight_;
};

}  // namespace gpt
