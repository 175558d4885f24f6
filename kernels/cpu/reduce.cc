// dst[i] = the sources' i-th elements combined one after the other: the inner
// loop of every reduction.  One pass: each source is read once, dst written
// once (read too with `add`), so the cost is the memory traffic.
#include "kernels/cpu/simd.h"
// The target list comes before Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reduce.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/lanes-inl.h"
#include "kernels/ops.h"

HWY_BEFORE_NAMESPACE();
namespace aliquot::kernels {
namespace HWY_NAMESPACE {

struct Sum {
  template <class D>
  static HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> acc, hn::Vec<D> x) {
    return hn::Add(acc, x);
  }
};
struct Min {
  template <class D>
  static HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> acc, hn::Vec<D> x) {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      return hn::IfThenElse(hn::Or(hn::Lt(x, acc), hn::IsNaN(x)), x, acc);
    } else {
      return hn::Min(acc, x);
    }
  }
};
struct Max {
  template <class D>
  static HWY_INLINE hn::Vec<D> combine(D, hn::Vec<D> acc, hn::Vec<D> x) {
    if constexpr (hwy::IsFloat<hn::TFromD<D>>()) {
      return hn::IfThenElse(hn::Or(hn::Gt(x, acc), hn::IsNaN(x)), x, acc);
    } else {
      return hn::Max(acc, x);
    }
  }
};

template <typename T>
struct Finish {
  T scale;
  bool add, scaled;
};

// The sources, with their number fixed or not (0).
template <typename In, int64_t kSources>
struct Sources {
  explicit Sources(const ReduceArgs& a) {
    for (int64_t k = 0; k < kSources; ++k) {
      pointers[k] = static_cast<const In*>(a.srcs[k]);
    }
  }
  HWY_INLINE const In* at(int64_t k) const { return pointers[k]; }
  HWY_INLINE int64_t count() const { return kSources; }

  const In* pointers[kSources];
};
template <typename In>
struct Sources<In, 0> {
  explicit Sources(const ReduceArgs& a) : pointers(a.srcs), n(a.n) {}
  HWY_INLINE const In* at(int64_t k) const {
    return static_cast<const In*>(pointers[k]);
  }
  HWY_INLINE int64_t count() const { return n; }

  const void* const* pointers;
  int64_t n;
};

template <class Op, typename T, typename Out, class From>
struct ReduceBody {
  Out* dst;
  From srcs;
  Finish<T> finish;

  template <class D, class Access>
  HWY_INLINE void operator()(D d, size_t i, Access access) const {
    auto acc = access.get(d, srcs.at(0) + i);
    for (int64_t k = 1; k < srcs.count(); ++k) {
      acc = Op::combine(d, acc, access.get(d, srcs.at(k) + i));
    }
    if constexpr (hwy::IsFloat<T>()) {
      if (finish.scaled) acc = hn::Mul(acc, hn::Set(d, finish.scale));
    }
    if (finish.add) acc = hn::Add(access.get(d, dst + i), acc);
    if constexpr (hwy::IsFloat<T>()) acc = canonical_lanes(d, acc);
    access.put(acc, d, dst + i);
  }
};

template <class Op, typename T, typename In, typename Out, int64_t kSources,
          class D>
void reduce_sources(D d, const ReduceArgs& a) {
  const bool scaled = hwy::IsFloat<T>() && a.op == ALQ_SUM && a.scale != 1.0;
  const T scale = scaled ? static_cast<T>(a.scale) : T{1};
  const Finish<T> finish = {scale, a.add != 0, scaled};
  using From = Sources<In, kSources>;
  Out* dst = static_cast<Out*>(a.dst);
  const ReduceBody<Op, T, Out, From> body = {dst, From(a), finish};
  for_each_vector(d, dst, a.count, body);
}

template <class Op, typename T, typename In, typename Out>
void reduce_typed(const ReduceArgs& a) {
  const TagFor<T, In, Out> d;
  if (a.n == 2) return reduce_sources<Op, T, In, Out, 2>(d, a);
  if constexpr (std::is_same_v<Op, Sum> && std::is_same_v<In, Out> &&
                hwy::IsFloat<T>()) {
    if (a.n == 3) return reduce_sources<Op, T, In, Out, 3>(d, a);
    if (a.n == 4) return reduce_sources<Op, T, In, Out, 4>(d, a);
    if (a.n == 8) return reduce_sources<Op, T, In, Out, 8>(d, a);
  }
  // Whole vectors: each reads the list of sources again.
  constexpr bool kWithF64 =
      std::is_same_v<In, double> || std::is_same_v<Out, double>;
  const typename ComputeTag<T, false, kWithF64>::type whole;
  reduce_sources<Op, T, In, Out, 0>(whole, a);
}

template <typename T, typename In, typename Out>
void reduce_op(const ReduceArgs& a) {
  if (a.op == ALQ_SUM) return reduce_typed<Sum, T, In, Out>(a);
  if (a.op == ALQ_MIN) return reduce_typed<Min, T, In, Out>(a);
  return reduce_typed<Max, T, In, Out>(a);
}

template <typename In>
void reduce_float(const ReduceArgs& a) {
  using T = std::conditional_t<std::is_same_v<In, double>, double, float>;
  switch (a.out) {
    case ALQ_F64: return reduce_op<double, In, double>(a);
    case ALQ_F32: return reduce_op<T, In, float>(a);
    case ALQ_F16: return reduce_op<T, In, F16>(a);
    default: return reduce_op<T, In, BF16>(a);
  }
}

void reduce(const ReduceArgs& a) {
  switch (a.in) {
    case ALQ_F64: return reduce_float<double>(a);
    case ALQ_F32: return reduce_float<float>(a);
    case ALQ_F16: return reduce_float<F16>(a);
    default: return reduce_float<BF16>(a);
  }
}

template <typename T>
void reduce_integer(const ReduceArgs& a) {
  using U = std::make_unsigned_t<T>;  // wraps without overflow
  if (a.op == ALQ_SUM) return reduce_typed<Sum, U, U, U>(a);
  if (a.op == ALQ_MIN) return reduce_typed<Min, T, T, T>(a);
  return reduce_typed<Max, T, T, T>(a);
}

void reduce_integers(const ReduceArgs& a) {
  switch (a.in) {
    case ALQ_I8: return reduce_integer<int8_t>(a);
    case ALQ_I16: return reduce_integer<int16_t>(a);
    case ALQ_I32: return reduce_integer<int32_t>(a);
    case ALQ_I64: return reduce_integer<int64_t>(a);
    case ALQ_U8: return reduce_integer<uint8_t>(a);
    case ALQ_U16: return reduce_integer<uint16_t>(a);
    case ALQ_U32: return reduce_integer<uint32_t>(a);
    default: return reduce_integer<uint64_t>(a);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aliquot::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aliquot::kernels {
namespace {

constexpr SimdTable<void(const ReduceArgs&)> kFloats = ALQ_SIMD_TABLE(reduce);
constexpr SimdTable<void(const ReduceArgs&)> kIntegers =
    ALQ_SIMD_TABLE(reduce_integers);

}  // namespace

bool reduce_supported(Dtype in, Dtype out, alq_reduce_op op) {
  if (op != ALQ_SUM && op != ALQ_MIN && op != ALQ_MAX) return false;
  return is_float(in) ? is_float(out) : is_integer(in) && in == out;
}

void reduce_cpu(const ReduceArgs& args) {
  if (!reduce_supported(args.in, args.out, args.op) || args.n < 1) return;
  const auto& table = is_float(args.in) ? kFloats : kIntegers;
  table[chosen_target()](args);
}

}  // namespace aliquot::kernels
#endif  // HWY_ONCE
