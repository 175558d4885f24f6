// Vectors of f32 or f64 read from and written to memory of any float dtype,
// with the roundings of arithmetic/half.h.  Included once per SIMD target.
// Any address is allowed.  Reading fewer elements than lanes fills with zero,
// and goes through the same conversions as a whole vector.
// Cost: f16 is one instruction with F16C, a scalar loop on SSE4.

// Per-target include guard.
#if defined(ALQ_KERNELS_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ALQ_KERNELS_LANES_INL_H_
#undef ALQ_KERNELS_LANES_INL_H_
#else
#define ALQ_KERNELS_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>
#include <type_traits>

#include "kernels/arithmetic/combine.h"
#include "kernels/arithmetic/half.h"

HWY_BEFORE_NAMESPACE();
namespace aliquot::kernels {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Half a cache line at most, for loops that do nearly nothing but stream: on
// Zen 4 loops of whole lines reach 90 % of the memory speed of these.
template <typename T>
using StreamTag = hn::CappedTag<T, 32 / sizeof(T)>;

// Vectors of T for a loop that reads and writes elements of types S: f32 lanes
// are halved in number when f64 is involved.
template <typename T, bool kSame, bool kWithF64>
struct ComputeTag {
  using type = hn::ScalableTag<T>;
};
template <typename T, bool kWithF64>
struct ComputeTag<T, true, kWithF64> {
  using type = StreamTag<T>;
};
template <>
struct ComputeTag<float, false, true> {
  using type = hn::Rebind<float, hn::ScalableTag<double>>;
};
template <typename T, typename... S>
using TagFor = typename ComputeTag<T, (std::is_same_v<S, T> && ...),
                                   (std::is_same_v<S, double> || ...)>::type;

template <class D>
HWY_INLINE hn::Vec<D> canonical_lanes(D d, hn::Vec<D> v) {
  using T = hn::TFromD<D>;
  return hn::IfThenElse(hn::IsNaN(v), hn::Set(d, canonical_nan<T>()), v);
}

#if HWY_TARGET == HWY_SCALAR

template <class D, typename S>
HWY_INLINE hn::Vec<D> load(D d, const S* p) {
  S s;
  std::memcpy(&s, p, sizeof(s));
  if constexpr (std::is_same_v<S, hn::TFromD<D>>) {
    return hn::Set(d, s);
  } else {
    return hn::Set(d, convert<hn::TFromD<D>>(s));
  }
}

template <class D, typename S>
HWY_INLINE void store(hn::Vec<D> v, D, S* p) {
  if constexpr (std::is_same_v<S, hn::TFromD<D>>) {
    const S s = hn::GetLane(v);
    std::memcpy(p, &s, sizeof(s));
  } else {
    const S s = convert<S>(hn::GetLane(v));
    std::memcpy(p, &s, sizeof(s));
  }
}

#else  // HWY_TARGET != HWY_SCALAR

#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
inline constexpr bool kHasF16 = false;
#else
inline constexpr bool kHasF16 = true;
#endif

template <class D>
HWY_INLINE hn::Vec<D> load_f16(D d, const F16* p) {
  if constexpr (kHasF16) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(
        d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
  } else {
    HWY_ALIGN F16 halves[hn::MaxLanes(D())];
    HWY_ALIGN float floats[hn::MaxLanes(D())];
    std::memcpy(halves, p, sizeof(F16) * hn::Lanes(d));
    for (size_t i = 0; i < hn::Lanes(d); ++i) floats[i] = f16_to_f32(halves[i]);
    return hn::LoadU(d, floats);
  }
}

template <class D>
HWY_INLINE void store_f16(hn::Vec<D> v, D d, F16* p) {
  if constexpr (kHasF16) {
    const hn::Rebind<hwy::float16_t, D> d16;
    hn::StoreU(hn::DemoteTo(d16, v), d16, reinterpret_cast<hwy::float16_t*>(p));
  } else {
    HWY_ALIGN F16 halves[hn::MaxLanes(D())];
    HWY_ALIGN float floats[hn::MaxLanes(D())];
    hn::StoreU(v, d, floats);
    for (size_t i = 0; i < hn::Lanes(d); ++i) halves[i] = f32_to_f16(floats[i]);
    std::memcpy(p, halves, sizeof(F16) * hn::Lanes(d));
  }
}

template <class D>
HWY_INLINE hn::Vec<D> load_bf16(D d, const BF16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

template <class D>
HWY_INLINE void store_bf16(hn::Vec<D> v, D, BF16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(d32, 0x7fffu)), odd);
  const auto quiet = hn::Or(bits, hn::Set(d32, 0x400000u));
  const auto is_nan = hn::RebindMask(d32, hn::IsNaN(v));
  const auto out = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
  hn::StoreU(hn::TruncateTo(d16, out), d16, reinterpret_cast<uint16_t*>(p));
}

// See f64_to_f32_odd.
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<float, D>> round_to_odd(D d, hn::Vec<D> v) {
  const hn::Rebind<float, D> df;
  const hn::Rebind<uint32_t, D> d32;
  const hn::Rebind<uint64_t, D> d64;
  const auto near = hn::DemoteTo(df, v);
  const auto rounded = hn::Abs(hn::PromoteTo(d, near));
  const auto magnitude = hn::Abs(v);
  const auto one = hn::BitCast(d, hn::Set(d64, uint64_t{1}));
  const auto above = hn::Gt(rounded, magnitude);
  const auto inexact = hn::Or(above, hn::Lt(rounded, magnitude));
  const auto down = hn::BitCast(d64, hn::IfThenElseZero(above, one));
  const auto odd = hn::BitCast(d64, hn::IfThenElseZero(inexact, one));
  const auto u = hn::BitCast(d32, near);
  return hn::BitCast(df, hn::Or(hn::Sub(u, hn::TruncateTo(d32, down)),
                                hn::TruncateTo(d32, odd)));
}

template <class D, typename S>
HWY_INLINE hn::Vec<D> load(D d, const S* p) {
  using T = hn::TFromD<D>;
  if constexpr (std::is_same_v<S, T>) {
    return hn::LoadU(d, p);
  } else if constexpr (std::is_same_v<T, double>) {
    return hn::PromoteTo(d, load(hn::Rebind<float, D>(), p));
  } else if constexpr (std::is_same_v<S, double>) {
    return hn::DemoteTo(d, hn::LoadU(hn::Rebind<double, D>(), p));
  } else if constexpr (std::is_same_v<S, F16>) {
    return load_f16(d, p);
  } else {
    return load_bf16(d, p);
  }
}

template <class D, typename S>
HWY_INLINE void store(hn::Vec<D> v, D d, S* p) {
  using T = hn::TFromD<D>;
  if constexpr (std::is_same_v<S, T>) {
    hn::StoreU(v, d, p);
  } else if constexpr (std::is_same_v<S, double>) {
    const hn::Rebind<double, D> dd;
    hn::StoreU(hn::PromoteTo(dd, v), dd, p);
  } else if constexpr (std::is_same_v<T, double>) {
    const hn::Rebind<float, D> df;
    if constexpr (std::is_same_v<S, float>) {
      hn::StoreU(hn::DemoteTo(df, v), df, p);
    } else {
      store(round_to_odd(d, v), df, p);
    }
  } else if constexpr (std::is_same_v<S, F16>) {
    store_f16(v, d, p);
  } else {
    store_bf16(v, d, p);
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

// Access to a whole vector, or to the first `count` lanes of one.
struct Whole {
  template <class D, typename S>
  HWY_INLINE hn::Vec<D> get(D d, const S* p) const {
    return load(d, p);
  }
  template <class D, typename S>
  HWY_INLINE void put(hn::Vec<D> v, D d, S* p) const {
    store(v, d, p);
  }
};

struct Part {
  size_t count;

  template <class D, typename S>
  HWY_INLINE hn::Vec<D> get(D d, const S* p) const {
    HWY_ALIGN S lanes[hn::MaxLanes(D())];
    std::memset(lanes, 0, sizeof(lanes));
    std::memcpy(lanes, p, count * sizeof(S));
    return load(d, lanes);
  }
  template <class D, typename S>
  HWY_INLINE void put(hn::Vec<D> v, D d, S* p) const {
    HWY_ALIGN S lanes[hn::MaxLanes(D())];
    store(v, d, lanes);
    std::memcpy(p, lanes, count * sizeof(S));
  }
};

// Elements before dst is aligned to whole vectors; 0 when not worth it.
template <class D, typename S>
HWY_INLINE size_t lead_of(D d, const S* dst, size_t count) {
  const size_t step = hn::Lanes(d);
  const size_t off = reinterpret_cast<uintptr_t>(dst) % (step * sizeof(S));
  const bool skip = off == 0 || off % sizeof(S) != 0 || count < 16 * step;
  return skip ? 0 : step - off / sizeof(S);
}

// body(d, i, access) for each vector of `count` elements, in order; writes to
// dst are aligned where they can be.
template <class D, typename S, class Body>
HWY_INLINE void for_each_vector(D d, const S* dst, int64_t count,
                                const Body& body) {
  const size_t n = static_cast<size_t>(count);
  const size_t step = hn::Lanes(d);
  size_t i = lead_of(d, dst, n);
  if (i != 0) body(d, 0, Part{i});
  for (; i + step <= n; i += step) body(d, i, Whole{});
  if (i < n) body(d, i, Part{n - i});
}

}  // namespace HWY_NAMESPACE
}  // namespace aliquot::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
