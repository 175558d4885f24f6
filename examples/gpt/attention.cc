#include "attention.h"

#include <algorithm>
#include <cmath>

#include "lanes.h"

namespace gpt {
namespace {

constexpr int64_t kBlock = 64;

// Turns one row of scores into probabilities of the first `seen` columns and
// zeroes the rest.
template <class T>
void softmax_row(int64_t seen, int64_t width, Compute<T>* scores, T* probs) {
  using C = Compute<T>;
  const C top = lane_max(seen, scores);
  for (int64_t j = 0; j < seen; ++j) scores[j] = exp_of(scores[j] - top);
  const C sum = lane_sum<C>(seen, [scores](int64_t j) { return scores[j]; });
  const C inverse = C{1} / sum;
  for (int64_t j = 0; j < seen; ++j) probs[j] = down<T>(scores[j] * inverse);
  std::fill(probs + seen, probs + width, T{});
}

template <class T>
void softmax_row_backward(int64_t width, Compute<T> scale, const T* probs,
                          const Compute<T>* dprobs, T* dscores) {
  using C = Compute<T>;
  const C mean =
      lane_sum<C>(width, [=](int64_t j) { return dprobs[j] * up(probs[j]); });
  for (int64_t j = 0; j < width; ++j) {
    dscores[j] = down<T>(up(probs[j]) * (dprobs[j] - mean) * scale);
  }
}

}  // namespace

template <class T>
Attention<T>::Attention(AttentionShape shape, Pool& pool, Gemm<T>& gemm)
    : s_(shape),
      gemm_(gemm),
      scale_(C{1} / std::sqrt(static_cast<C>(shape.head_dim))),
      scores_(pool.take<C>(kBlock * shape.seq)),
      dscores_(pool.take<T>(kBlock * shape.seq)),
      dk_(pool.take<C>(shape.seq * shape.head_dim)),
      dv_(pool.take<C>(shape.seq * shape.head_dim)) {}

template <class T>
typename Attention<T>::Head Attention<T>::head(int64_t sample,
                                               int64_t h) const {
  const int64_t d = s_.head_dim, row = sample * s_.seq;
  const int64_t kv = h / (s_.heads / s_.kv_heads);
  return {row * s_.heads * d + h * d, row * s_.kv_heads * d + kv * d,
          (sample * s_.heads + h) * s_.seq * s_.seq};
}

template <class T>
In<T> Attention<T>::queries(const T* q) const {
  return {q, s_.seq, s_.head_dim, s_.heads * s_.head_dim};
}

template <class T>
In<T> Attention<T>::keys(const T* k) const {
  return {k, s_.seq, s_.head_dim, s_.kv_heads * s_.head_dim};
}

template <class T>
void Attention<T>::forward(const T* q, const T* k, const T* v, T* probs, T* o) {
  for (int64_t i = 0; i < s_.samples * s_.heads; ++i) {
    const Head at = head(i / s_.heads, i % s_.heads);
    T* p = probs + at.probs;
    const Out<T> result{o + at.q, s_.seq, s_.head_dim, s_.heads * s_.head_dim};
    for (int64_t r0 = 0; r0 < s_.seq; r0 += kBlock) {
      const int64_t r1 = std::min(r0 + kBlock, s_.seq);
      const Out<C> scores{scores_, r1 - r0, r1, s_.seq};
      gemm_(scale_, queries(q + at.q).row_range(r0, r1),
            transposed(keys(k + at.kv).row_range(0, r1)), C{0}, scores);
      for (int64_t r = r0; r < r1; ++r) {
        softmax_row(r + 1, r1, scores_ + (r - r0) * s_.seq, p + r * s_.seq);
      }
      const In<T> block{p + r0 * s_.seq, r1 - r0, r1, s_.seq};
      gemm_(C{1}, block, keys(v + at.kv).row_range(0, r1), C{0},
            result.row_range(r0, r1));
    }
  }
}

template <class T>
void Attention<T>::head_backward(const Saved& saved, const Grads& grads,
                                 Head at) {
  const int64_t d = s_.head_dim;
  const Out<T> dq{grads.q + at.q, s_.seq, d, s_.heads * d};
  for (int64_t r0 = 0; r0 < s_.seq; r0 += kBlock) {
    const int64_t r1 = std::min(r0 + kBlock, s_.seq);
    const T* p = saved.probs + at.probs + r0 * s_.seq;
    const In<T> probs{p, r1 - r0, r1, s_.seq};
    const In<T> dout = queries(grads.o + at.q).row_range(r0, r1);
    const Out<C> dprobs{scores_, r1 - r0, r1, s_.seq};
    gemm_(C{1}, dout, transposed(keys(saved.v + at.kv).row_range(0, r1)), C{0},
          dprobs);
    for (int64_t r = 0; r < r1 - r0; ++r) {
      softmax_row_backward(r1, scale_, p + r * s_.seq, scores_ + r * s_.seq,
                           dscores_ + r * s_.seq);
    }
    const In<T> dscores{dscores_, r1 - r0, r1, s_.seq};
    gemm_(C{1}, dscores, keys(saved.k + at.kv).row_range(0, r1), C{0},
          dq.row_range(r0, r1));
    gemm_(C{1}, transposed(dscores), queries(saved.q + at.q).row_range(r0, r1),
          C{1}, out(dk_, r1, d));
    gemm_(C{1}, transposed(probs), dout, C{1}, out(dv_, r1, d));
  }
}

template <class T>
void Attention<T>::store_kv(Head at, const Grads& grads) {
  const int64_t d = s_.head_dim, ld = s_.kv_heads * d;
  for (int64_t r = 0; r < s_.seq; ++r) {
    for (int64_t j = 0; j < d; ++j) {
      grads.k[at.kv + r * ld + j] = down<T>(dk_[r * d + j]);
      grads.v[at.kv + r * ld + j] = down<T>(dv_[r * d + j]);
    }
  }
}

template <class T>
void Attention<T>::backward(const Saved& saved, const Grads& grads) {
  const int64_t shared = s_.heads / s_.kv_heads;
  for (int64_t i = 0; i < s_.samples * s_.kv_heads; ++i) {
    const int64_t sample = i / s_.kv_heads, first = i % s_.kv_heads * shared;
    std::fill_n(dk_, s_.seq * s_.head_dim, C{0});
    std::fill_n(dv_, s_.seq * s_.head_dim, C{0});
    for (int64_t h = first; h < first + shared; ++h) {
      head_backward(saved, grads, head(sample, h));
    }
    store_kv(head(sample, first), grads);
  }
}

template class Attention<double>;
template class Attention<float>;
template class Attention<Bf16>;

}  // namespace gpt
