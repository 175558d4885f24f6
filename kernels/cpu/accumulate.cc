// dst[i] += src[i], dst f32 or f64, src any float dtype; one pass.
#include "kernels/cpu/simd.h"
// The target list comes before Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/accumulate.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aliquot::kernels {
namespace HWY_NAMESPACE {

template <typename To, typename From>
struct AccumulateBody {
  To* dst;
  const From* src;

  template <class D, class Access>
  HWY_INLINE void operator()(D d, size_t i, Access access) const {
    const auto sum = hn::Add(access.get(d, dst + i), access.get(d, src + i));
    access.put(canonical_lanes(d, sum), d, dst + i);
  }
};

template <typename To, typename From>
void accumulate_typed(const AccumulateArgs& a) {
  const TagFor<To, From> d;
  To* dst = static_cast<To*>(a.dst);
  const From* src = static_cast<const From*>(a.src);
  for_each_vector(d, dst, a.count, AccumulateBody<To, From>{dst, src});
}

template <typename To>
void accumulate_into(const AccumulateArgs& a) {
  switch (a.src_dtype) {
    case ALQ_F64: return accumulate_typed<To, double>(a);
    case ALQ_F32: return accumulate_typed<To, float>(a);
    case ALQ_F16: return accumulate_typed<To, F16>(a);
    default: return accumulate_typed<To, BF16>(a);
  }
}

void accumulate(const AccumulateArgs& a) {
  if (a.dst_dtype == ALQ_F64) return accumulate_into<double>(a);
  return accumulate_into<float>(a);
}

}  // namespace HWY_NAMESPACE
}  // namespace aliquot::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aliquot::kernels {
namespace {

constexpr SimdTable<void(const AccumulateArgs&)> kAccumulate =
    ALQ_SIMD_TABLE(accumulate);

}  // namespace

bool accumulate_supported(Dtype dst, Dtype src) {
  return (dst == ALQ_F32 || dst == ALQ_F64) && is_float(src);
}

void accumulate_cpu(const AccumulateArgs& args) {
  if (!accumulate_supported(args.dst_dtype, args.src_dtype)) return;
  kAccumulate[chosen_target()](args);
}

}  // namespace aliquot::kernels
#endif  // HWY_ONCE
