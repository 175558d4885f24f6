#include "block.h"

#include <algorithm>

#include "rmsnorm.h"
#include "swiglu.h"

namespace gpt {

template <class T>
Block<T>::Block(const Shape& shape, Pool& pool, Gemm<T>& gemm)
    : s_(shape),
      gemm_(gemm),
      rope_(shape.seq, shape.head_dim()),
      attention_({shape.micro_batch, shape.seq, shape.heads, shape.kv_heads,
                  shape.head_dim()},
                 pool, gemm),
      dact_(pool.take<T>(shape.rows() * shape.ffn)),
      dout_(pool.take<T>(shape.rows() * shape.hidden)),
      dq_(pool.take<T>(shape.rows() * shape.hidden)),
      dk_(pool.take<T>(shape.rows() * shape.kv_dim())),
      dv_(pool.take<T>(shape.rows() * shape.kv_dim())),
      dnorm_(pool.take<C>(shape.rows() * shape.hidden)),
      dweight_(pool.take<C>(shape.hidden)) {}

template <class T>
BlockState<T> Block<T>::make_state(Pool& pool) const {
  const int64_t wide = s_.rows() * s_.hidden, narrow = s_.rows() * s_.kv_dim();
  const int64_t inner = s_.rows() * s_.ffn;
  BlockState<T> state;
  for (T** tensor : {&state.n1, &state.q, &state.o, &state.h, &state.n2}) {
    *tensor = pool.take<T>(wide);
  }
  for (T** tensor : {&state.k, &state.v}) *tensor = pool.take<T>(narrow);
  for (T** tensor : {&state.gate, &state.up, &state.act}) {
    *tensor = pool.take<T>(inner);
  }
  state.probs = pool.take<T>(attention_.probs_count());
  state.scale1 = pool.take<C>(s_.rows());
  state.scale2 = pool.take<C>(s_.rows());
  return state;
}

template <class T>
void Block<T>::linear(const T* x, int64_t in_size, const void* w,
                      int64_t out_size, T* y) {
  gemm_(C{1}, in(x, s_.rows(), in_size),
        transposed(in(static_cast<const T*>(w), out_size, in_size)), C{0},
        out(y, s_.rows(), out_size));
}

template <class T>
void Block<T>::forward(UnitView unit, const T* x, const BlockState<T>& s,
                       T* y) {
  const int64_t rows = s_.rows(), hidden = s_.hidden;
  const auto w = [&](int64_t i) { return static_cast<T*>(unit.params[i]); };
  rmsnorm({rows, hidden}, x, w(kNorm1), s.n1, s.scale1);
  linear(s.n1, hidden, w(kQ), hidden, s.q);
  linear(s.n1, hidden, w(kK), s_.kv_dim(), s.k);
  linear(s.n1, hidden, w(kV), s_.kv_dim(), s.v);
  rope_.turn(rows, s_.heads, s.q);
  rope_.turn(rows, s_.kv_heads, s.k);
  attention_.forward(s.q, s.k, s.v, s.probs, s.o);
  std::copy_n(x, rows * hidden, s.h);
  gemm_(C{1}, in(s.o, rows, hidden), transposed(in(w(kO), hidden, hidden)),
        C{1}, out(s.h, rows, hidden));
  rmsnorm({rows, hidden}, s.h, w(kNorm2), s.n2, s.scale2);
  linear(s.n2, hidden, w(kGate), s_.ffn, s.gate);
  linear(s.n2, hidden, w(kUp), s_.ffn, s.up);
  swiglu(rows * s_.ffn, s.gate, s.up, s.act);
  std::copy_n(s.h, rows * hidden, y);
  gemm_(C{1}, in(s.act, rows, s_.ffn), transposed(in(w(kDown), hidden, s_.ffn)),
        C{1}, out(y, rows, hidden));
}

// dW = dy^T x, straight into the lent view.
template <class T>
void Block<T>::weight_grad(const Grads<T>& grads, int64_t i, In<T> dy,
                           In<T> x) {
  if (!grads.wanted(i)) return;
  gemm_(C{1}, transposed(dy), x, grads.beta(i),
        out(grads.grad(i), dy.cols, x.cols));
  grads.ready(i);
}

template <class T>
void Block<T>::norm_grad(const Grads<T>& grads, int64_t i) {
  if (!grads.wanted(i)) return;
  grads.put(i, s_.hidden, dweight_, grads.beta(i) != C{0});
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
  gemm_(C{1}, dy, in(grads.param(kDown), hidden, ffn), C{0},
        out(dact_, rows, ffn));
  swiglu_backward(rows * ffn, dact_, s.gate, s.up);
  const In<T> dgate = in<T>(s.gate, rows, ffn), dup = in<T>(s.up, rows, ffn);
  const In<T> n2 = in<T>(s.n2, rows, hidden);
  const Out<C> dn = out(dnorm_, rows, hidden);
  weight_grad(grads, kGate, dgate, n2);
  weight_grad(grads, kUp, dup, n2);
  gemm_(C{1}, dgate, in(grads.param(kGate), ffn, hidden), C{0}, dn);
  gemm_(C{1}, dup, in(grads.param(kUp), ffn, hidden), C{1}, dn);
  rmsnorm_backward({rows, hidden}, s.h, grads.param(kNorm2), s.scale2, dnorm_,
                   d, dweight_);
  norm_grad(grads, kNorm2);
}

// From dh to dx, both in d.
template <class T>
void Block<T>::attention_backward(const Grads<T>& grads, const T* x,
                                  const BlockState<T>& s, T* d) {
  const int64_t rows = s_.rows(), hidden = s_.hidden, narrow = s_.kv_dim();
  const In<T> dh = in(static_cast<const T*>(d), rows, hidden);
  weight_grad(grads, kO, dh, in<T>(s.o, rows, hidden));
  gemm_(C{1}, dh, in(grads.param(kO), hidden, hidden), C{0},
        out(dout_, rows, hidden));
  attention_.backward({s.q, s.k, s.v, s.probs}, {dout_, dq_, dk_, dv_});
  rope_.turn_back(rows, s_.heads, dq_);
  rope_.turn_back(rows, s_.kv_heads, dk_);
  const In<T> dq = in<T>(dq_, rows, hidden), dk = in<T>(dk_, rows, narrow),
              dv = in<T>(dv_, rows, narrow), n1 = in<T>(s.n1, rows, hidden);
  const Out<C> dn = out(dnorm_, rows, hidden);
  weight_grad(grads, kQ, dq, n1);
  weight_grad(grads, kK, dk, n1);
  weight_grad(grads, kV, dv, n1);
  gemm_(C{1}, dq, in(grads.param(kQ), hidden, hidden), C{0}, dn);
  gemm_(C{1}, dk, in(grads.param(kK), narrow, hidden), C{1}, dn);
  gemm_(C{1}, dv, in(grads.param(kV), narrow, hidden), C{1}, dn);
  rmsnorm_backward({rows, hidden}, x, grads.param(kNorm1), s.scale1, dnorm_, d,
                   dweight_);
  norm_grad(grads, kNorm1);
}

template class Block<double>;
template class Block<float>;
template class Block<Bf16>;

}  // namespace gpt
