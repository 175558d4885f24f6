// Causal attention (attention.h): a block per row of scores, forward and for
// dQ; a thread per element of dK and dV, which sums over rows and the heads of
// its group in order, so that no two threads add to one element.
// Cost: 2 seq^2 d multiplications per head and product, without tensor cores:
// written to be right, not fast.
#include "cuda/device.h"

namespace gpt::cuda {
namespace {

// Where a row of queries is, and the keys it sees.
struct Place {
  int64_t q, kv, probs, row;  // offsets; the row within the sample
};

__device__ Place place_of(const AttentionSizes& s, int64_t i) {
  const int64_t row = i % s.seq, h = i / s.seq % s.heads;
  const int64_t sample = i / s.seq / s.heads;
  const int64_t kv = h / (s.heads / s.kv_heads);
  return {((sample * s.seq + row) * s.heads + h) * s.dim,
          (sample * s.seq * s.kv_heads + kv) * s.dim, i * s.seq, row};
}

template <class T>
__device__ Compute<T> dot(int64_t count, const T* a, const T* b) {
  Compute<T> sum{};
  for (int64_t i = 0; i < count; ++i) sum += up(a[i]) * up(b[i]);
  return sum;
}

// to[c] = the sum over j < seen of weights[j] * rows[j][c]
template <class T>
__device__ void weigh(int64_t seen, const AttentionSizes& s, const T* weights,
                      const T* rows, T* to) {
  each_of_block(s.dim, [&](int64_t c) {
    Compute<T> sum{};
    for (int64_t j = 0; j < seen; ++j) {
      sum += up(weights[j]) * up(rows[j * s.kv_heads * s.dim + c]);
    }
    to[c] = down<T>(sum);
  });
}

template <class T>
__device__ Compute<T> scale_of(const AttentionSizes& s) {
  using C = Compute<T>;
  return C{1} / std::sqrt(static_cast<C>(s.dim));
}

template <class T>
__device__ void attention(const AttentionArgs& a) {
  using C = Compute<T>;
  __shared__ C cells[kBlock];
  const AttentionSizes& s = a.s;
  const C scale = scale_of<T>(s);
  C* scores = static_cast<C*>(a.scratch) + blockIdx.x * s.seq;
  for (int64_t i = blockIdx.x; i < s.samples * s.heads * s.seq;
       i += gridDim.x) {
    const Place at = place_of(s, i);
    const T* q = static_cast<const T*>(a.q) + at.q;
    const T* k = static_cast<const T*>(a.k) + at.kv;
    T* probs = static_cast<T*>(a.probs) + at.probs;
    const int64_t seen = at.row + 1;
    each_of_block(seen, [&](int64_t j) {
      scores[j] = scale * dot(s.dim, q, k + j * s.kv_heads * s.dim);
    });
    const C top = block_max<C>(seen, cells, scores);
    each_of_block(seen,
                  [&](int64_t j) { scores[j] = exp_of(scores[j] - top); });
    const C sum =
        block_sum<C>(seen, cells, [&](int64_t j) { return scores[j]; });
    const C inverse = C{1} / sum;
    each_of_block(s.seq, [&](int64_t j) {
      probs[j] = j < seen ? down<T>(scores[j] * inverse) : T{};
    });
    weigh<T>(seen, s, probs, static_cast<const T*>(a.v) + at.kv,
             static_cast<T*>(a.o) + at.q);
  }
}

template <class T>
__device__ void attention_rows(const AttentionRowsArgs& a) {
  using C = Compute<T>;
  __shared__ C cells[kBlock];
  const AttentionSizes& s = a.s;
  const C scale = scale_of<T>(s);
  C* dprobs = static_cast<C*>(a.scratch) + blockIdx.x * s.seq;
  for (int64_t i = blockIdx.x; i < s.samples * s.heads * s.seq;
       i += gridDim.x) {
    const Place at = place_of(s, i);
    const T* dout = static_cast<const T*>(a.dout) + at.q;
    const T* v = static_cast<const T*>(a.v) + at.kv;
    const T* probs = static_cast<const T*>(a.probs) + at.probs;
    T* dscores = static_cast<T*>(a.dscores) + at.probs;
    const int64_t seen = at.row + 1;
    each_of_block(seen, [&](int64_t j) {
      dprobs[j] = dot(s.dim, dout, v + j * s.kv_heads * s.dim);
    });
    const C mean = block_sum<C>(
        seen, cells, [&](int64_t j) { return dprobs[j] * up(probs[j]); });
    each_of_block(s.seq, [&](int64_t j) {
      dscores[j] =
          j < seen ? down<T>(up(probs[j]) * (dprobs[j] - mean) * scale) : T{};
    });
    weigh<T>(seen, s, dscores, static_cast<const T*>(a.k) + at.kv,
             static_cast<T*>(a.dq) + at.q);
  }
}

// Sums over the rows that see key `at`, of all heads of its group.
template <class T>
__device__ Compute<T> column_sum(const AttentionSizes& s, int64_t at,
                                 const void* weights, const void* rows) {
  Compute<T> sum{};
  const int64_t c = at % s.dim, kv = at / s.dim % s.kv_heads;
  const int64_t j = at / s.dim / s.kv_heads % s.seq;
  const int64_t sample = at / s.dim / s.kv_heads / s.seq;
  const int64_t shared = s.heads / s.kv_heads;
  for (int64_t h = kv * shared; h < (kv + 1) * shared; ++h) {
    for (int64_t r = j; r < s.seq; ++r) {
      const int64_t row = (sample * s.heads + h) * s.seq + r;
      const int64_t from = ((sample * s.seq + r) * s.heads + h) * s.dim + c;
      sum += up(static_cast<const T*>(weights)[row * s.seq + j]) *
             up(static_cast<const T*>(rows)[from]);
    }
  }
  return sum;
}

template <class T>
__device__ void attention_columns(const AttentionColumnsArgs& a) {
  const AttentionSizes& s = a.s;
  each_element(s.samples * s.seq * s.kv_heads * s.dim, [&](int64_t i) {
    static_cast<T*>(a.dk)[i] = down<T>(column_sum<T>(s, i, a.dscores, a.q));
    static_cast<T*>(a.dv)[i] = down<T>(column_sum<T>(s, i, a.probs, a.dout));
  });
}

}  // namespace

GPT_KERNEL(attention, AttentionArgs, attention)
GPT_KERNEL(attention_rows, AttentionRowsArgs, attention_rows)
GPT_KERNEL(attention_columns, AttentionColumnsArgs, attention_columns)

}  // namespace gpt::cuda
