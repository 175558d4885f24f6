// dst[i] = src[i] * scale between the four float dtypes: one read, one write.
// Bound by memory: 16-byte accesses of the wider type, two per thread in
// flight.  Source: arithmetic/half.h.
#include "kernels/arithmetic/combine.h"
#include "kernels/cuda/move.h"

namespace aliquot::kernels {
namespace {

constexpr int kCastUnroll = 2;

template <typename To, typename From>
struct CastBody : ReadsAndWrites<To, From> {
  // The product is formed in this.
  using T = std::conditional_t<std::is_same_v<To, double> ||
                                   std::is_same_v<From, double>,
                               double, float>;

  T scale;
  bool scaled;

  template <int N>
  __device__ void finish(int64_t i, const Pack<From, N>& from) const {
    Pack<To, N> to;
#pragma unroll
    for (int j = 0; j < N; ++j) to.at[j] = element(from.at[j]);
    store_pack<N>(this->dst + i, to);
  }

  // Times 1 is exact, but a NaN that is only cast keeps its payload.
  __device__ To element(From from) const {
    const T x = convert<T>(from);
    const T product = x * scale;
    return convert<To>(product == product ? product
                                          : (scaled ? canonical_nan<T>() : x));
  }
};

template <typename To, typename From>
__device__ void cast(const CastArgs& a) {
  constexpr int kElements = elements_per_access<To, From>();
  if constexpr (std::is_same_v<To, From>) {
    if (a.scale == 1.0) {
      const MoveBody<To> move = {
          {static_cast<To*>(a.dst), static_cast<const To*>(a.src)}};
      return stream<kElements, kCastUnroll>(move, a.count);
    }
  }
  using Body = CastBody<To, From>;
  const Body body = {{static_cast<To*>(a.dst), static_cast<const From*>(a.src)},
                     static_cast<typename Body::T>(a.scale),
                     a.scale != 1.0};
  stream<kElements, kCastUnroll>(body, a.count);
}

}  // namespace

#define ALQ_CAST(to, from, To, From) \
  ALQ_KERNEL(alq_cast_##to##_##from, CastArgs) { cast<To, From>(args); }

ALQ_CAST(f64, f64, double, double)
ALQ_CAST(f64, f32, double, float)
ALQ_CAST(f64, f16, double, F16)
ALQ_CAST(f64, bf16, double, BF16)
ALQ_CAST(f32, f64, float, double)
ALQ_CAST(f32, f32, float, float)
ALQ_CAST(f32, f16, float, F16)
ALQ_CAST(f32, bf16, float, BF16)
ALQ_CAST(f16, f64, F16, double)
ALQ_CAST(f16, f32, F16, float)
ALQ_CAST(f16, f16, F16, F16)
ALQ_CAST(f16, bf16, F16, BF16)
ALQ_CAST(bf16, f64, BF16, double)
ALQ_CAST(bf16, f32, BF16, float)
ALQ_CAST(bf16, f16, BF16, F16)
ALQ_CAST(bf16, bf16, BF16, BF16)

#undef ALQ_CAST

}  // namespace aliquot::kernels
