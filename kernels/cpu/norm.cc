// The reproducible sum of squares of arithmetic/bins.h, by blocks that stay in
// L1.  A first pass finds the largest and the smallest magnitude.  They give a
// block a grid of 50 bit slices that holds every bit of every square; a second
// pass cuts each square along it, s + M - M for a large M, and adds the slices
// as integers: exact, so the grid of a block leaves no trace in the result.
// Then one deposit per slice.  Blocks with inf or nan, or of a range too wide
// for the slices, go element by element.
// Cost: about 8 vector operations per 8 elements for f32 of range 2^26.
// Source: Rump, Ogita, Oishi, Accurate Floating-Point Summation, 2008, for the
// cut; Dekker, 1971, for the error of a product.
#include "kernels/cpu/simd.h"
// The target list comes before Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cc"
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
// As signed integers: they are not negative.
template <typename T, typename I>
struct Range {
  I most = 0;
  I least = 0;
};

template <typename T, typename I, typename S>
Range<T, I> find_range(const S* p, size_t n) {
  const hn::ScalableTag<T> d;
  const hn::RebindToSigned<decltype(d)> di;
  const size_t step = hn::Lanes(d);
  const auto mask = hn::Set(di, hwy::LimitsMax<I>());
  auto most = hn::Zero(di);
  auto least = mask;
  size_t i = 0;
  for (; i < n; i += step) {
    const auto x = i + step <= n ? load(d, p + i) : Part{n - i}.get(d, p + i);
    const auto bits = hn::And(hn::BitCast(di, x), mask);
    most = hn::Max(most, bits);
    // 0 - 1 becomes the largest.
    least = hn::Min(least, hn::And(hn::Sub(bits, hn::Set(di, I{1})), mask));
  }
  HWY_ALIGN I lanes[2 * hn::MaxLanes(di)];
  hn::Store(most, di, lanes);
  hn::Store(least, di, lanes + step);
  Range<T, I> range{0, hwy::LimitsMax<I>()};
  for (size_t k = 0; k < step; ++k) {
    range.most = HWY_MAX(range.most, lanes[k]);
    range.least = HWY_MIN(range.least, lanes[step + k]);
  }
  return range;
}

// Adds the slices of the lanes of s to acc, as raw bits of M + slice.
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

template <int kSlices, typename S>
void sum_slices(const S* p, size_t n, double scale, NormBlock* block) {
  const hn::ScalableTag<double> d;
  const hn::RebindToSigned<decltype(d)> di;
  using V = hn::Vec<decltype(d)>;
  constexpr bool kF64 = std::is_same_v<S, double>;
  const size_t step = hn::Lanes(d);
  V magic[kSlices];
  hn::Vec<decltype(di)> acc[kSlices];
  for (int j = 0; j < kSlices; ++j) {
    magic[j] = hn::Set(d, slice_magic(block->grid_top, j));
    acc[j] = hn::Zero(di);
  }
  for (size_t i = 0; i < n; i += step) {
    V y = i + step <= n ? load(d, p + i) : Part{n - i}.get(d, p + i);
    if constexpr (kF64) y = hn::Mul(y, hn::Set(d, scale));
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
    const double m = slice_magic(block->grid_top, j);
    uint64_t sum = 0 - cuts * bit_cast_to<uint64_t>(m);
    for (size_t k = 0; k < step; ++k) sum += static_cast<uint64_t>(lanes[k]);
    block->sum[j] = static_cast<int64_t>(sum);
  }
  block->slices = kSlices;
}

template <typename S>
void norm_block_f32(const S* p, size_t n, int mantissa, NormBlock* block) {
  const auto range = find_range<float, int32_t>(p, n);
  block->slices = 0;
  block->irregular = range.most >= 0x7f800000;
  if (range.most == 0 || block->irregular) return;
  const int most = HWY_MAX(range.most >> 23, 1) - 127;
  const int least = HWY_MAX((range.least + 1) >> 23, 1) - 127;
  block->c = 0;
  block->grid_top = block->top = 2 * (most + 1);
  const int slices = slices_for(block->top - 2 * (least - mantissa));
  if (slices == 1) return sum_slices<1>(p, n, 1.0, block);
  if (slices == 2) return sum_slices<2>(p, n, 1.0, block);
  if (slices == 3) return sum_slices<3>(p, n, 1.0, block);
  if (slices <= 6) return sum_slices<6>(p, n, 1.0, block);
  sum_slices<12>(p, n, 1.0, block);
}

void norm_block_f64(const double* p, size_t n, NormBlock* block) {
  const auto range = find_range<double, int64_t>(p, n);
  block->slices = 0;
  block->irregular = range.most >= 0x7ff0000000000000;
  if (range.most == 0 || block->irregular) return;
  const int most = exponent_of_bits(static_cast<uint64_t>(range.most));
  const int least = exponent_of_bits(static_cast<uint64_t>(range.least) + 1);
  block->c = class_of_exponent(most);
  // Scaled to below 2, so that no square leaves the range of f64.
  block->grid_top = 2;
  block->top = 2 + 2 * most;
  const double scale = power_of_two(-most);
  const int slices = slices_for(2 + 2 * (most - least) + 104);
  block->irregular = slices > 6 || class_of_exponent(least) != block->c;
  if (block->irregular) return;
  if (slices <= 3) return sum_slices<3>(p, n, scale, block);
  sum_slices<6>(p, n, scale, block);
}

void norm_block(const void* p, size_t n, Dtype dtype, NormBlock* block) {
  switch (dtype) {
    case ALQ_F64:
      return norm_block_f64(static_cast<const double*>(p), n, block);
    case ALQ_F32:
      return norm_block_f32(static_cast<const float*>(p), n, 23, block);
    case ALQ_F16:
      return norm_block_f32(static_cast<const F16*>(p), n, 10, block);
    default:
      return norm_block_f32(static_cast<const BF16*>(p), n, 7, block);
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
    case ALQ_F64:
      return norm_elements<double>(a.src, a.count, a.base, a.bins);
    case ALQ_F32:
      return norm_elements<float>(a.src, a.count, a.base, a.bins);
    case ALQ_F16:
      return norm_elements<F16>(a.src, a.count, a.base, a.bins);
    default:
      return norm_elements<BF16>(a.src, a.count, a.base, a.bins);
  }
}

void deposit_block(const NormBlock& block, NormBins* bins) {
  uint64_t* words = class_words(bins, block.c);
  if (words == nullptr) return;
  for (int j = 0; j < block.slices; ++j) {
    if (block.sum[j] == 0) continue;
    deposit(words, block.c, block.sum[j], block.top - kSliceBits * (j + 1));
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
    } else if (block.slices != 0) {
      deposit_block(block, bins);
    }
  }
}

}  // namespace aliquot::kernels
#endif  // HWY_ONCE
