// The reproducible sum of squares of arithmetic/bins.h, by blocks that stay in
// L1.  A first pass finds the largest and the smallest magnitude, hence a grid
// that holds every bit of the block.  A second pass adds the squares without
// any rounding error, by the cheapest way that the width of the grid allows:
//   plain   the sum of squares fits into the 53 bits of an f64;
//   halves  x = h + l, and so do the sums of h h, h l and l l;
//   slices  each square is cut into 50 bit slices, added as integers.
// All are exact, so neither the way nor the grid leaves a trace in the result.
// Then a deposit per sum.  Blocks with inf or nan, or with too wide a range,
// go element by element.
// Cost per 8 elements: 2, 7 or 5 + 5 slices vector operations.
// Source: Rump, Ogita, Oishi, Accurate Floating-Point Summation, 2008, for the
// split; Dekker, 1971, for the error of a product.
#include "kernels/cpu/simd.h"
// The target list comes before Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/lanes-inl.h"
#include "kernels/cpu/norm_block.h"

HWY_BEFORE_NAMESPACE();
namespace aliquot::kernels {
namespace HWY_NAMESPACE {

// Bits of the largest magnitude, and of the smallest that is not zero less one.
struct Range {
  int64_t most, least;
};

template <class D>
struct RangeLanes {
  hn::Vec<D> mask, one, most, least;

  HWY_INLINE void add(hn::Vec<D> x) {
    const auto bits = hn::And(x, mask);
    most = hn::Max(most, bits);
    // 0 - 1 becomes the largest.
    least = hn::Min(least, hn::And(hn::Sub(bits, one), mask));
  }
};

// I: the signed integer as wide as the element.  Without the sign bit, the bits
// of floats are ordered as the floats.
template <typename I>
Range find_range(const void* elements, size_t n) {
  const hn::ScalableTag<I> d;
  const I* p = static_cast<const I*>(elements);
  const size_t step = hn::Lanes(d);
  const I top = hwy::LimitsMax<I>();
  RangeLanes<hn::ScalableTag<I>> r = {hn::Set(d, top), hn::Set(d, I{1}),
                                      hn::Zero(d), hn::Set(d, top)};
  size_t i = 0;
  for (; i + step <= n; i += step) r.add(load(d, p + i));
  if (i < n) r.add(Part{n - i}.get(d, p + i));
  HWY_ALIGN I lanes[2 * hn::MaxLanes(d)];
  hn::Store(r.most, d, lanes);
  hn::Store(r.least, d, lanes + step);
  Range range = {0, top};
  for (size_t k = 0; k < step; ++k) {
    range.most = HWY_MAX(range.most, int64_t{lanes[k]});
    range.least = HWY_MIN(range.least, int64_t{lanes[step + k]});
  }
  return range;
}

// Asks for what follows this block while it is summed.
template <typename S>
HWY_INLINE void prefetch_after(const S* p, size_t n) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(p) + n * sizeof(S);
  hwy::Prefetch(reinterpret_cast<const void*>(at));
}

// Adds an exact sum, lane by lane a multiple of 2^unit below 2^(unit + 53);
// each counts `times` (1 or 2).
template <class D, class V>
HWY_INLINE void add_part(D d, V even, V odd, int unit, int times,
                         NormBlock* block) {
  const size_t step = hn::Lanes(d);
  HWY_ALIGN double lanes[2 * hn::MaxLanes(D())];
  hn::Store(even, d, lanes);
  hn::Store(odd, d, lanes + step);
  const double scale = power_of_two(-unit);
  int64_t total = 0;
  for (size_t k = 0; k < 2 * step; ++k) {
    total += static_cast<int64_t>(lanes[k] * scale);
  }
  block->sum[block->parts] = total * times;
  block->exponent[block->parts++] = unit;
}

// Bits that sums of n terms over two vectors of lanes need beyond one term's.
template <class D>
HWY_INLINE int count_bits(D d, size_t n) {
  const size_t terms = n / (2 * hn::Lanes(d)) + 2;
  int bits = 0;
  while ((size_t{1} << bits) < terms) ++bits;
  return bits;
}

// Fused or not, MulAdd is exact here.
template <class D, typename S>
HWY_INLINE void sum_plain(D d, const S* p, size_t n, Grid grid,
                          NormBlock* block) {
  const size_t step = hn::Lanes(d);
  auto even = hn::Zero(d);
  auto odd = even;
  size_t i = 0;
  for (; i + 2 * step <= n; i += 2 * step) {
    prefetch_after(p + i, n);
    const auto x = load(d, p + i), y = load(d, p + i + step);
    even = hn::MulAdd(x, x, even);
    odd = hn::MulAdd(y, y, odd);
  }
  for (; i < n; i += step) {
    const auto x = Part{HWY_MIN(step, n - i)}.get(d, p + i);
    even = hn::MulAdd(x, x, even);
  }
  add_part(d, even, odd, 2 * grid.low, 1, block);
}

template <class D>
struct HalfSums {
  hn::Vec<D> magic, high, cross, low;

  HWY_INLINE void add(hn::Vec<D> x) {
    const auto h = hn::Sub(hn::Add(x, magic), magic);
    const auto l = hn::Sub(x, h);
    high = hn::MulAdd(h, h, high);
    cross = hn::MulAdd(h, l, cross);
    low = hn::MulAdd(l, l, low);
  }
};

template <class D, typename S>
HWY_INLINE void sum_halves(D d, const S* p, size_t n, Grid grid,
                           NormBlock* block) {
  const int middle = grid.high - (grid.width() + 1) / 2;
  const auto zero = hn::Zero(d);
  const auto magic = hn::Set(d, rounding_term(middle));
  HalfSums<D> even = {magic, zero, zero, zero};
  HalfSums<D> odd = even;
  const size_t step = hn::Lanes(d);
  size_t i = 0;
  for (; i + 2 * step <= n; i += 2 * step) {
    prefetch_after(p + i, n);
    even.add(load(d, p + i));
    odd.add(load(d, p + i + step));
  }
  for (; i < n; i += step) {
    even.add(Part{HWY_MIN(step, n - i)}.get(d, p + i));
  }
  add_part(d, even.high, odd.high, 2 * middle, 1, block);
  add_part(d, even.cross, odd.cross, middle + grid.low, 2, block);
  add_part(d, even.low, odd.low, 2 * grid.low, 1, block);
}

// Adds the slices of the lanes of s to acc, as raw bits of magic + slice.
template <int kSlices, class D, class V, class I>
HWY_INLINE void cut(D, V s, const V* magic, I* acc) {
  const hn::RebindToSigned<D> di;
  for (int j = 0; j < kSlices; ++j) {
    const V t = hn::Add(s, magic[j]);
    acc[j] = hn::Add(acc[j], hn::BitCast(di, t));
    if (j + 1 < kSlices) s = hn::Sub(s, hn::Sub(t, magic[j]));
  }
}

// The error of the product y * y, exact.
template <class D, class V>
HWY_INLINE V square_error(D d, V y, V product) {
  const V c = hn::Mul(y, hn::Set(d, 134217729.0));
  const V high = hn::Sub(c, hn::Sub(c, y));
  const V low = hn::Sub(y, high);
  const V cross = hn::Mul(high, low);
  const V first = hn::Sub(hn::Mul(high, high), product);
  return hn::Add(hn::Add(first, hn::Add(cross, cross)), hn::Mul(low, low));
}

// Elements are scaled by 2^-shift, to below 2^(high - shift).
template <int kSlices, typename S>
void sum_slices(const S* p, size_t n, int high, int shift, NormBlock* block) {
  const hn::ScalableTag<double> d;
  const hn::RebindToSigned<decltype(d)> di;
  using V = hn::Vec<decltype(d)>;
  constexpr bool kF64 = std::is_same_v<S, double>;
  const size_t step = hn::Lanes(d);
  const int top = 2 * (high - shift);
  const V scale = hn::Set(d, power_of_two(-shift));
  V magic[kSlices];
  hn::Vec<decltype(di)> acc[kSlices];
  for (int j = 0; j < kSlices; ++j) {
    magic[j] = hn::Set(d, rounding_term(top - kSliceBits * (j + 1)));
    acc[j] = hn::Zero(di);
  }
  for (size_t i = 0; i < n; i += step) {
    prefetch_after(p + i, n);
    V y = i + step <= n ? load(d, p + i) : Part{n - i}.get(d, p + i);
    if constexpr (kF64) y = hn::Mul(y, scale);
    const V square = hn::Mul(y, y);
    cut<kSlices>(d, square, magic, acc);
    if constexpr (kF64) {
      cut<kSlices>(d, square_error(d, y, square), magic, acc);
    }
  }
  const uint64_t cuts = (n + step - 1) / step * step * (kF64 ? 2 : 1);
  HWY_ALIGN int64_t lanes[hn::MaxLanes(di)];
  for (int j = 0; j < kSlices; ++j) {
    hn::Store(acc[j], di, lanes);
    const int unit = top - kSliceBits * (j + 1);
    uint64_t sum = 0 - cuts * bit_cast_to<uint64_t>(rounding_term(unit));
    for (size_t k = 0; k < step; ++k) sum += static_cast<uint64_t>(lanes[k]);
    block->sum[j] = static_cast<int64_t>(sum);
    block->exponent[j] = unit + 2 * shift;
  }
  block->parts = kSlices;
}

template <typename S>
void sum_small(const S* p, size_t n, Grid grid, NormBlock* block) {
  const hn::ScalableTag<double> d;
  const int spare = 53 - count_bits(d, n);
  if (2 * grid.width() <= spare) return sum_plain(d, p, n, grid, block);
  if (grid.width() + 1 <= spare) return sum_halves(d, p, n, grid, block);
  const int slices = slices_for(2 * grid.width());
  if (slices <= 2) return sum_slices<2>(p, n, grid.high, 0, block);
  if (slices <= 4) return sum_slices<4>(p, n, grid.high, 0, block);
  sum_slices<12>(p, n, grid.high, 0, block);
}

// Of a float format: exponent of the first normal number, mantissa bits.
template <typename I, typename S>
void norm_block_small(const S* p, size_t n, int lowest, int mantissa,
                      NormBlock* block) {
  const Range range = find_range<I>(p, n);
  const int64_t infinity = hwy::LimitsMax<I>() >> mantissa << mantissa;
  block->parts = 0;
  block->c = 0;
  block->irregular = range.most >= infinity;
  if (range.most == 0 || block->irregular) return;
  const int least = static_cast<int>((range.least + 1) >> mantissa);
  const int most = static_cast<int>(range.most >> mantissa);
  const Grid grid = {lowest + HWY_MAX(least, 1) - 1 - mantissa,
                     lowest + HWY_MAX(most, 1)};
  sum_small(p, n, grid, block);
}

void norm_block_f64(const double* p, size_t n, NormBlock* block) {
  const Range range = find_range<int64_t>(p, n);
  block->parts = 0;
  block->irregular = range.most >= 0x7ff0000000000000;
  if (range.most == 0 || block->irregular) return;
  const int most = exponent_of_bits(static_cast<uint64_t>(range.most));
  const int least = exponent_of_bits(static_cast<uint64_t>(range.least) + 1);
  const Grid grid = {least - 52, most + 1};
  block->c = class_of_exponent(most);
  const int slices = slices_for(2 * grid.width());
  block->irregular = slices > 6 || class_of_exponent(least) != block->c;
  if (block->irregular) return;
  // Scaled to below 2, so that no square leaves the range of f64.
  if (slices <= 3) return sum_slices<3>(p, n, grid.high, most, block);
  sum_slices<6>(p, n, grid.high, most, block);
}

void norm_block(const void* p, size_t n, Dtype dtype, NormBlock* block) {
  switch (dtype) {
    case ALQ_F64:
      return norm_block_f64(static_cast<const double*>(p), n, block);
    case ALQ_F32:
      return norm_block_small<int32_t>(static_cast<const float*>(p), n, -126,
                                       23, block);
    case ALQ_F16:
      return norm_block_small<int16_t>(static_cast<const F16*>(p), n, -14, 10,
                                       block);
    default:
      return norm_block_small<int16_t>(static_cast<const BF16*>(p), n, -126, 7,
                                       block);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aliquot::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aliquot::kernels {
namespace {

constexpr SimdTable<void(const void*, size_t, Dtype, NormBlock*)> kNormBlock =
    ALQ_SIMD_TABLE(norm_block);

template <typename S>
void norm_elements(const void* p, int64_t count, int64_t base, NormBins* bins) {
  for (int64_t i = 0; i < count; ++i) {
    S s;
    std::memcpy(&s, static_cast<const char*>(p) + i * int64_t{sizeof(S)},
                sizeof(S));
    const double x = convert<double>(s);
    if (std::isfinite(x)) {
      deposit_square(bins, x);
    } else {
      const bool first = bins->nonfinite == 0 || base + i < bins->first_bad;
      if (first) bins->first_bad = base + i;
      ++bins->nonfinite;
    }
  }
}

void norm_irregular(const NormArgs& a) {
  switch (a.dtype) {
    case ALQ_F64: return norm_elements<double>(a.src, a.count, a.base, a.bins);
    case ALQ_F32: return norm_elements<float>(a.src, a.count, a.base, a.bins);
    case ALQ_F16: return norm_elements<F16>(a.src, a.count, a.base, a.bins);
    default: return norm_elements<BF16>(a.src, a.count, a.base, a.bins);
  }
}

void deposit_block(const NormBlock& block, NormBins* bins) {
  uint64_t* words = class_words(bins, block.c);
  if (words == nullptr) return;
  for (int j = 0; j < block.parts; ++j) {
    if (block.sum[j] == 0) continue;
    deposit(words, block.c, block.sum[j], block.exponent[j]);
  }
}

}  // namespace

void norm_cpu(const NormArgs& args) {
  if (!is_float(args.dtype)) return;
  NormBins* bins = args.bins;
  if (bins->nonfinite == 0) bins->first_bad = -1;
  const int64_t size = dtype_size(args.dtype);
  const int64_t block_count = size == 8 ? kNormBlockF64 : kNormBlockF32;
  const auto kernel = kNormBlock[chosen_target()];
  for (int64_t at = 0; at < args.count; at += block_count) {
    NormArgs part = args;
    part.src = static_cast<const char*>(args.src) + at * size;
    part.count = HWY_MIN(block_count, args.count - at);
    part.base = args.base + at;
    NormBlock block;
    kernel(part.src, static_cast<size_t>(part.count), part.dtype, &block);
    if (block.irregular) {
      norm_irregular(part);
    } else if (block.parts != 0) {
      deposit_block(block, bins);
    }
  }
}

}  // namespace aliquot::kernels
#endif  // HWY_ONCE
