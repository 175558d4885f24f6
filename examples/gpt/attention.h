// Causal self-attention with grouped queries: heads h of a group share the key
// and value head h / (heads / kv_heads).  Per sample and head
//   P = softmax(Q K^T / sqrt(d)) over the past,   O = P V
//   dV += P^T dO,  dP = dO V^T,  dS = P (dP - rowsum(dP P)) / sqrt(d),
//   dQ = dS K,  dK += dS^T Q.
// Rows go in blocks of 64, each against the columns it can see, so about half
// of the square is never computed.  Cost: 2 seq^2 d multiplications per head
// and product; P is kept for the backward pass.
// Source: Vaswani et al.; Ainslie et al., GQA.
#pragma once

#include <cstdint>

#include "gemm.h"

namespace gpt {

struct AttentionShape {
  int64_t samples, seq, heads, kv_heads, head_dim;
};

template <class T>
class Attention {
 public:
  using C = Compute<T>;
  Attention(AttentionShape shape, Pool& pool, Gemm<T>& gemm);

  int64_t probs_count() const {
    return s_.samples * s_.heads * s_.seq * s_.seq;
  }

  // q, o: [samples * seq, heads * d]; k, v: [samples * seq, kv_heads * d].
  void forward(const T* q, const T* k, const T* v, T* probs, T* o);

  struct Saved {
    const T *q, *k, *v, *probs;
  };
  struct Grads {
    const T* o;
    T *q, *k, *v;
  };
  void backward(const Saved& saved, const Grads& grads);

 private:
  struct Head {
    int64_t q, kv, probs;  // offsets of this sample and head
  };
  Head head(int64_t sample, int64_t h) const;
  In<T> queries(const T* q) const;
  In<T> keys(const T* k) const;
  void head_backward(const Saved& saved, const Grads& grads, Head at);
  void store_kv(Head at, const Grads& grads);

  AttentionShape s_;
  Gemm<T>& gemm_;
  C scale_;
  C* scores_;    // [block, seq]
  T* dscores_;   // [block, seq]
  C *dk_, *dv_;  // [seq, d]
};

}  // namespace gpt
