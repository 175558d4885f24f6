#include "block.h"

namespace gpt {

template <class T>
Block<T>::Block(const Shape& shape, Ops<T>& ops)
    : s_(shape),
      ops_(ops),
      dact_(ops.template take<T>(shape.rows() * shape.ffn)),
      dout_(ops.template take<T>(shape.rows() * shape.hidden)),
      dq_(ops.template take<T>(shape.rows() * shape.hidden)),
      dk_(ops.template take<T>(shape.rows() * shape.kv_dim())),
      dv_(ops.template take<T>(shape.rows() * shape.kv_dim())),
      dnorm_(ops.template take<C>(shape.rows() * shape.hidden)),
      dweight_(ops.template take<C>(shape.hidden)) {}

template <class T>
BlockState<T> Block<T>::make_state() const {
  const int64_t wide = s_.rows() * s_.hidden, narrow = s_.rows() * s_.kv_dim();
  const int64_t inner = s_.rows() * s_.ffn;
  const auto take = [this](int64_t count) {
    return ops_.template take<T>(count);
  };
  BlockState<T> state;
  for (T** tensor : {&state.n1, &state.q, &state.o, &state.h, &state.n2}) {
    *tensor = take(wide);
  }
  for (T** tensor : {&state.k, &state.v}) *tensor = take(narrow);
  for (T** tensor : {&state.gate, &state.up, &state.act}) {
    *tensor = take(inner);
  }
  state.probs = take(s_.micro_batch * s_.heads * s_.seq * s_.seq);
  state.scale1 = ops_.template take<C>(s_.rows());
  state.scale2 = ops_.template take<C>(s_.rows());
  return state;
}

template <class T>
void Block<T>::linear(const T* x, int64_t in_size, const void* w,
                      int64_t out_size, T* y) {
  ops_.multiply(C{1}, in(x, s_.rows(), in_size),
                transposed(in(static_cast<const T*>(w), out_size, in_size)),
                C{0}, out(y, s_.rows(), out_size));
}

template <class T>
void Block<T>::forward(UnitView unit, const T* x, const BlockState<T>& s,
                       T* y) {
  const int64_t rows = s_.rows(), hidden = s_.hidden;
  const auto w = [&](int64_t i) { return static_cast<T*>(unit.params[i]); };
  ops_.rmsnorm({rows, hidden}, x, w(kNorm1), s.n1, s.scale1);
  linear(s.n1, hidden, w(kQ), hidden, s.q);
  linear(s.n1, hidden, w(kK), s_.kv_dim(), s.k);
  linear(s.n1, hidden, w(kV), s_.kv_dim(), s.v);
  ops_.turn(s_.heads, s.q, false);
  ops_.turn(s_.kv_heads, s.k, false);
  ops_.attention(s.q, s.k, s.v, s.probs, s.o);
  ops_.copy(rows * hidden, x, s.h);
  ops_.multiply(C{1}, in(s.o, rows, hidden),
                transposed(in(w(kO), hidden, hidden)), C{1},
                out(s.h, rows, hidden));
  ops_.rmsnorm({rows, hidden}, s.h, w(kNorm2), s.n2, s.scale2);
  linear(s.n2, hidden, w(kGate), s_.ffn, s.gate);
  linear(s.n2, hidden, w(kUp), s_.ffn, s.up);
  ops_.swiglu(rows * s_.ffn, s.gate, s.up, s.act);
  ops_.copy(rows * hidden, s.h, y);
  ops_.multiply(C{1}, in(s.act, rows, s_.ffn),
                transposed(in(w(kDown), hidden, s_.ffn)), C{1},
                out(y, rows, hidden));
}

// dW = dy^T x, straight into the lent view.
template <class T>
void Block<T>::weight_grad(const Grads<T>& grads, int64_t i, In<T> dy,
                           In<T> x) {
  if (!grads.wanted(i)) return;
  ops_.multiply(C{1}, transposed(dy), x, grads.beta(i),
                out(grads.grad(i), dy.cols, x.cols));
  grads.ready(i);
}

template <class T>
void Block<T>::norm_grad(const Grads<T>& grads, int64_t i) {
  if (!grads.wanted(i)) return;
  ops_.put(s_.hidden, dweight_, grads.beta(i) != C{0}, grads.grad(i));
  grads.ready(i);
}

template <class T>
void Block<T>::backward(const Grads<T>& grads, const T* x,
                        const BlockState<T>& state, T* d) {
  ffn_backward(grads, state, d);
  attention_backward(grads, x, state, d);
}

// From dy to dh, both in d.
template <class T>
void Block<T>::ffn_backward(const Grads<T>& grads, const BlockState<T>& s,
                            T* d) {
  const int64_t rows = s_.rows(), hidden = s_.hidden, ffn = s_.ffn;
  const In<T> dy = in(static_cast<const T*>(d), rows, hidden);
  weight_grad(grads, kDown, dy, in<T>(s.act, rows, ffn));
  ops_.multiply(C{1}, dy, in(grads.param(kDown), hidden, ffn), C{0},
                out(dact_, rows, ffn));
  ops_.swiglu_backward(rows * ffn, dact_, s.gate, s.up);
  const In<T> dgate = in<T>(s.gate, rows, ffn), dup = in<T>(s.up, rows, ffn);
  const In<T> n2 = in<T>(s.n2, rows, hidden);
  const Out<C> dn = out(dnorm_, rows, hidden);
  weight_grad(grads, kGate, dgate, n2);
  weight_grad(grads, kUp, dup, n2);
  ops_.multiply_wide(dgate, in(grads.param(kGate), ffn, hidden), C{0}, dn);
  ops_.multiply_wide(dup, in(grads.param(kUp), ffn, hidden), C{1}, dn);
  ops_.rmsnorm_backward({rows, hidden}, s.h, grads.param(kNorm2), s.scale2,
                        dnorm_, d, dweight_);
  norm_grad(grads, kNorm2);
}

// From dh to dx, both in d.
template <class T>
void Block<T>::attention_backward(const Grads<T>& grads, const T* x,
                                  const BlockState<T>& s, T* d) {
  const int64_t rows = s_.rows(), hidden = s_.hidden, narrow = s_.kv_dim();
  const In<T> dh = in(static_cast<const T*>(d), rows, hidden);
  weight_grad(grads, kO, dh, in<T>(s.o, rows, hidden));
  ops_.multiply(C{1}, dh, in(grads.param(kO), hidden, hidden), C{0},
                out(dout_, rows, hidden));
  ops_.attention_backward({s.q, s.k, s.v, s.probs}, {dout_, dq_, dk_, dv_});
  ops_.turn(s_.heads, dq_, true);
  ops_.turn(s_.kv_heads, dk_, true);
  const In<T> dq = in<T>(dq_, rows, hidden), dk = in<T>(dk_, rows, narrow),
              dv = in<T>(dv_, rows, narrow), n1 = in<T>(s.n1, rows, hidden);
  const Out<C> dn = out(dnorm_, rows, hidden);
  weight_grad(grads, kQ, dq, n1);
  weight_grad(grads, kK, dk, n1);
  weight_grad(grads, kV, dv, n1);
  ops_.multiply_wide(dq, in(grads.param(kQ), hidden, hidden), C{0}, dn);
  ops_.multiply_wide(dk, in(grads.param(kK), narrow, hidden), C{1}, dn);
  ops_.multiply_wide(dv, in(grads.param(kV), narrow, hidden), C{1}, dn);
  ops_.rmsnorm_backward({rows, hidden}, x, grads.param(kNorm1), s.scale1,
                        dnorm_, d, dweight_);
  norm_grad(grads, kNorm1);
}

template class Block<double>;
template class Block<float>;
template class Block<Bf16>;

}  // namespace gpt
