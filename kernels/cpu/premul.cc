// dst[i] = sum over k of factors[k] * srcs[k][i]: each product is rounded, then
// they are added one after the other, like every sum here.  One pass: each
// source is read once, dst written once.
#include "kernels/cpu/simd.h"
// The target list comes before Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/premul.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/lanes-inl.h"
#include "kernels/ops.h"

HWY_BEFORE_NAMESPACE();
namespace aliquot::kernels {
namespace HWY_NAMESPACE {

template <typename T, typename S>
struct PremulBody {
  S* dst;
  const void* const* srcs;
  const double* factors;
  int64_t n;

  template <class D, class Access>
  HWY_INLINE void operator()(D d, size_t i, Access access) const {
    auto acc = product(d, 0, i, access);
    for (int64_t k = 1; k < n; ++k) {
      acc = hn::Add(acc, product(d, k, i, access));
    }
    access.put(canonical_lanes(d, acc), d, dst + i);
  }

  template <class D, class Access>
  HWY_INLINE hn::Vec<D> product(D d, int64_t k, size_t i, Access access) const {
    const auto factor = hn::Set(d, static_cast<T>(factors[k]));
    return hn::Mul(access.get(d, static_cast<const S*>(srcs[k]) + i), factor);
  }
};

template <typename T, typename S>
void premul_typed(const PremulArgs& a) {
  // Whole vectors: each reads the lists again.
  const hn::ScalableTag<T> d;
  S* dst = static_cast<S*>(a.dst);
  for_each_vector(d, dst, a.count,
                  PremulBody<T, S>{dst, a.srcs, a.factors, a.n});
}

void premul(const PremulArgs& a) {
  switch (a.dtype) {
    case ALQ_F64: return premul_typed<double, double>(a);
    case ALQ_F32: return premul_typed<float, float>(a);
    case ALQ_F16: return premul_typed<float, F16>(a);
    default: return premul_typed<float, BF16>(a);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aliquot::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aliquot::kernels {
namespace {

constexpr SimdTable<void(const PremulArgs&)> kPremul = ALQ_SIMD_TABLE(premul);

}  // namespace

void premul_cpu(const PremulArgs& args) {
  if (!is_float(args.dtype) || args.n < 1) return;
  kPremul[chosen_target()](args);
}

}  // namespace aliquot::kernels
#endif  // HWY_ONCE
