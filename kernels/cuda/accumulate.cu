// dst[i] += src[i], dst f32 or f64, src of any float dtype: two reads, one
// write.
#include "kernels/arithmetic/combine.h"
#include "kernels/cuda/any.h"
#include "kernels/cuda/stream.h"

namespace aliquot::kernels {
namespace {

template <typename To, typename From>
struct AccumulateBody {
  View<To> dst;
  View<const From> src;

  template <int N>
  struct Loaded {
    Pack<To, N> sum;
    Pack<From, N> term;
  };

  template <int N>
  __device__ Lead<N> lead() const {
    Lead<N> lead;
    dst.align(&lead);
    src.align(&lead);
    return lead;
  }

  template <int N>
  __device__ Loaded<N> load(int64_t i) const {
    return {dst.template load<N>(i), src.template load<N>(i)};
  }

  template <int N>
  __device__ void finish(int64_t i, const Loaded<N>& loaded) const {
    To sum[N], term[N];
    dst.get(loaded.sum, sum);
    src.get(loaded.term, term);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] = canonical(sum[j] + term[j]);
    dst.put(i, sum);
  }
};

template <typename To, typename From>
__device__ void accumulate(const AccumulateArgs& a) {
  const AccumulateBody<To, From> body = {{static_cast<To*>(a.dst)},
                                         {static_cast<const From*>(a.src)}};
  stream<elements_per_access<To, From>(), 2>(body, a.count);
}

}  // namespace

#define ALQ_ACCUMULATE(to, from, To, From)                   \
  ALQ_KERNEL(alq_accumulate_##to##_##from, AccumulateArgs) { \
    accumulate<To, From>(args);                              \
  }

ALQ_ACCUMULATE(f64, f64, double, double)
ALQ_ACCUMULATE(f64, f32, double, float)
ALQ_ACCUMULATE(f64, f16, double, F16)
ALQ_ACCUMULATE(f64, bf16, double, BF16)
ALQ_ACCUMULATE(f32, f64, float, double)
ALQ_ACCUMULATE(f32, f32, float, float)
ALQ_ACCUMULATE(f32, f16, float, F16)
ALQ_ACCUMULATE(f32, bf16, float, BF16)

#undef ALQ_ACCUMULATE

}  // namespace aliquot::kernels
