// dst[i] = src[i] * scale between the four float dtypes, one pass.
#include "kernels/cpu/simd.h"
// The target list comes before Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cast.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace aliquot::kernels {
namespace HWY_NAMESPACE {

template <typename To, typename From>
struct CastBody {
  To* dst;
  const From* src;

  template <class D, class Access>
  HWY_INLINE void operator()(D d, size_t i, Access access) const {
    access.put(access.get(d, src + i), d, dst + i);
  }
};

template <typename T, typename To, typename From>
struct ScaleBody {
  To* dst;
  const From* src;
  T scale;

  template <class D, class Access>
  HWY_INLINE void operator()(D d, size_t i, Access access) const {
    const auto x = hn::Mul(access.get(d, src + i), hn::Set(d, scale));
    access.put(canonical_lanes(d, x), d, dst + i);
  }
};

template <typename To, typename From>
void cast_typed(const CastArgs& a) {
  constexpr bool kF64 =
      std::is_same_v<To, double> || std::is_same_v<From, double>;
  using T = std::conditional_t<kF64, double, float>;
  const TagFor<T, To, From> d;
  To* dst = static_cast<To*>(a.dst);
  const From* src = static_cast<const From*>(a.src);
  if (a.scale == 1.0) {
    for_each_vector(d, dst, a.count, CastBody<To, From>{dst, src});
  } else {
    for_each_vector(d, dst, a.count,
                    ScaleBody<T, To, From>{dst, src, static_cast<T>(a.scale)});
  }
}

template <typename From>
void cast_from(const CastArgs& a) {
  switch (a.dst_dtype) {
    case ALQ_F64: return cast_typed<double, From>(a);
    case ALQ_F32: return cast_typed<float, From>(a);
    case ALQ_F16: return cast_typed<F16, From>(a);
    default: return cast_typed<BF16, From>(a);
  }
}

void cast(const CastArgs& a) {
  switch (a.src_dtype) {
    case ALQ_F64: return cast_from<double>(a);
    case ALQ_F32: return cast_from<float>(a);
    case ALQ_F16: return cast_from<F16>(a);
    default: return cast_from<BF16>(a);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aliquot::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aliquot::kernels {
namespace {

constexpr SimdTable<void(const CastArgs&)> kCast = ALQ_SIMD_TABLE(cast);

}  // namespace

bool cast_supported(Dtype dst, Dtype src) {
  return is_float(dst) && is_float(src);
}

void cast_cpu(const CastArgs& args) {
  if (!cast_supported(args.dst_dtype, args.src_dtype)) return;
  if (args.dst_dtype == args.src_dtype && args.scale == 1.0) {
    copy_cpu({args.dst, args.src, args.count * dtype_size(args.src_dtype)});
    return;
  }
  kCast[chosen_target()](args);
}

}  // namespace aliquot::kernels
#endif  // HWY_ONCE
