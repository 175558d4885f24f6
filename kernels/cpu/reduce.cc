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
  static HWY_INLINE hn::Vec<D> combine(D d, hn::Vec<D> acc, hn::Vec<D> x) {
    (void)d;
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

// kSources 0: any number.
template <class Op, typename T, typename In, typename Out, int64_t kSources>
struct ReduceBody {
  Out* dst;
  const void* const* srcs;
  int64_t n;
  T scale;
  bool add, scaled;

  template <class D, class Access>
  HWY_INLINE void operator()(D d, size_t i, Access access) const {
    const int64_t sources = kSources != 0 ? kSources : n;
    auto acc = access.get(d, static_cast<const In*>(srcs[0]) + i);
    for (int64_t k = 1; k < sources; ++k) {
      acc = Op::combine(d, acc,
                        access.get(d, static_cast<const In*>(srcs[k]) + i));
    }
    if constexpr (hwy::IsFloat<T>()) {
      if (scaled) acc = hn::Mul(acc, hn::Set(d, scale));
    }
    if (add) acc = hn::Add(access.get(d, dst + i), acc);
    if constexpr (hwy::IsFloat<T>()) acc = canonical_lanes(d, acc);
    access.put(acc, d, dst + i);
  }
};

template <class Op, typename T, typename In, typename Out>
void reduce_typed(const ReduceArgs& a) {
  const TagFor<T, In, Out> d;
  const T scale = static_cast<T>(a.scale);
  const bool scaled = hwy::IsFloat<T>() && a.op == ALQ_SUM && a.scale != 1.0;
  Out* dst = static_cast<Out*>(a.dst);
  const bool add = a.add != 0;
  if (a.n == 2) {
    const void* const pair[2] = {a.srcs[0], a.srcs[1]};
    const ReduceBody<Op, T, In, Out, 2> body = {dst,   pair, 2,
                                                scale, add,  scaled};
    for_each_vector(d, dst, a.count, body);
  } else {
    const ReduceBody<Op, T, In, Out, 0> body = {dst,   a.srcs, a.n,
                                                scale, add,    scaled};
    for_each_vector(d, dst, a.count, body);
  }
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
    case ALQ_F64:
      return reduce_op<double, In, double>(a);
    case ALQ_F32:
      return reduce_op<T, In, float>(a);
    case ALQ_F16:
      return reduce_op<T, In, F16>(a);
    default:
      return reduce_op<T, In, BF16>(a);
  }
}

void reduce(const ReduceArgs& a) {
  switch (a.in) {
    case ALQ_F64:
      return reduce_float<double>(a);
    case ALQ_F32:
      return reduce_float<float>(a);
    case ALQ_F16:
      return reduce_float<F16>(a);
    default:
      return reduce_float<BF16>(a);
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
    case ALQ_I8:
      return reduce_integer<int8_t>(a);
    case ALQ_I16:
      return reduce_integer<int16_t>(a);
    case ALQ_I32:
      return reduce_integer<int32_t>(a);
    case ALQ_I64:
      return reduce_integer<int64_t>(a);
    case ALQ_U8:
      return reduce_integer<uint8_t>(a);
    case ALQ_U16:
      return reduce_integer<uint16_t>(a);
    case ALQ_U32:
      return reduce_integer<uint32_t>(a);
    default:
      return reduce_integer<uint64_t>(a);
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
