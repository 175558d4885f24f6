// Copies by vector stores to whole vectors of dst.
//   cold  the destination is not read soon, or by another core: the stores go
//         past the caches, so that the old lines are not fetched first and
//         others are not evicted.  The bytes are read and written once;
//         copy_cpu also reads dst.
//   even  as fast wherever both sides lie: memcpy's string instructions are
//         half as fast where the two differ within a line.
#include "kernels/cpu/simd.h"
// The target list comes before Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/copy_cold.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstring>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace aliquot::kernels {
namespace HWY_NAMESPACE {

template <bool kCold>
void copy_vectors(uint8_t* dst, const uint8_t* src, size_t bytes) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<uint8_t> d;
  const size_t step = hn::Lanes(d);
  size_t head = (0 - reinterpret_cast<uintptr_t>(dst)) % step;
  head = HWY_MIN(head, bytes);
  std::memcpy(dst, src, head);
  size_t i = head;
  for (; i + step <= bytes; i += step) {
    const auto lanes = hn::LoadU(d, src + i);
    if constexpr (kCold) {
      hn::Stream(lanes, d, dst + i);
    } else {
      hn::Store(lanes, d, dst + i);
    }
  }
  std::memcpy(dst + i, src + i, bytes - i);
}

void copy_cold(uint8_t* dst, const uint8_t* src, size_t bytes) {
  copy_vectors<true>(dst, src, bytes);
}

void copy_even(uint8_t* dst, const uint8_t* src, size_t bytes) {
  copy_vectors<false>(dst, src, bytes);
}

}  // namespace HWY_NAMESPACE
}  // namespace aliquot::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aliquot::kernels {
namespace {

using Copies = SimdTable<void(uint8_t*, const uint8_t*, size_t)>;
constexpr Copies kCold = ALQ_SIMD_TABLE(copy_cold);
constexpr Copies kEven = ALQ_SIMD_TABLE(copy_even);

void copy(const Copies& copies, const CopyArgs& args) {
  if (args.bytes <= 0) return;
  copies[chosen_target()](static_cast<uint8_t*>(args.dst),
                          static_cast<const uint8_t*>(args.src),
                          static_cast<size_t>(args.bytes));
}

}  // namespace

void copy_cold_cpu(const CopyArgs& args) { copy(kCold, args); }
void copy_even_cpu(const CopyArgs& args) { copy(kEven, args); }

void flush_cold_cpu() { hwy::FlushStream(); }

}  // namespace aliquot::kernels
#endif  // HWY_ONCE
