// The first infinite or NaN element: one read of the data; an element is not
// finite when all bits of its exponent are set.  Threads that found one, none
// as a rule, take the minimum in global memory: as unsigned numbers -1, which
// says none, is the largest.
#include "kernels/cuda/stream.h"

namespace aliquot::kernels {
namespace {

constexpr uint64_t kNone = ~uint64_t{0};

template <typename Bits, Bits kExponent>
struct FiniteBody : ReadsArray<Bits> {
  uint64_t* first;  // of this thread

  template <int N>
  __device__ void finish(int64_t i, const Pack<Bits, N>& x) const {
    int bad = N;
#pragma unroll
    for (int j = N - 1; j >= 0; --j) {
      if ((x.at[j] & kExponent) == kExponent) bad = j;
    }
    const uint64_t at = static_cast<uint64_t>(i + bad);
    if (bad < N && at < *first) *first = at;
  }
};

template <typename Bits, Bits kExponent>
__device__ void find_first(const FiniteArgs& a) {
  uint64_t first = kNone;
  const FiniteBody<Bits, kExponent> body = {{static_cast<const Bits*>(a.src)},
                                            &first};
  stream<16 / static_cast<int>(sizeof(Bits)), 2>(body, a.count);
  if (first == kNone) return;
  atomicMin(reinterpret_cast<unsigned long long*>(a.first_bad),
            static_cast<unsigned long long>(a.base) + first);
}

}  // namespace

ALQ_KERNEL(alq_finite_f64, FiniteArgs) {
  find_first<uint64_t, 0x7ff0000000000000u>(args);
}
ALQ_KERNEL(alq_finite_f32, FiniteArgs) {
  find_first<uint32_t, 0x7f800000u>(args);
}
ALQ_KERNEL(alq_finite_f16, FiniteArgs) { find_first<uint16_t, 0x7c00u>(args); }
ALQ_KERNEL(alq_finite_bf16, FiniteArgs) { find_first<uint16_t, 0x7f80u>(args); }

}  // namespace aliquot::kernels
