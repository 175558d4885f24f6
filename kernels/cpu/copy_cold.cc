// A copy whose destination is not read soon: its stores go past the caches, so
// that the old lines are not fetched first and others are not evicted.
// Cost: the bytes read and written once; copy_cpu also reads dst.
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

void copy_cold(uint8_t* dst, const uint8_t* src, size_t bytes) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<uint8_t> d;
  const size_t step = hn::Lanes(d);
  size_t head = (0 - reinterpret_cast<uintptr_t>(dst)) % step;
  head = HWY_MIN(head, bytes);
  std::memcpy(dst, src, head);
  size_t i = head;
  for (; i + step <= bytes; i += step) {
    hn::Stream(hn::LoadU(d, src + i), d, dst + i);
  }
  std::memcpy(dst + i, src + i, bytes - i);
}

}  // namespace HWY_NAMESPACE
}  // namespace aliquot::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aliquot::kernels {
namespace {

constexpr SimdTable<void(uint8_t*, const uint8_t*, size_t)> kCopyCold =
    ALQ_SIMD_TABLE(copy_cold);

}  // namespace

void copy_cold_cpu(const CopyArgs& args) {
  if (args.bytes <= 0) return;
  kCopyCold[chosen_target()](static_cast<uint8_t*>(args.dst),
                             static_cast<const uint8_t*>(args.src),
                             static_cast<size_t>(args.bytes));
}

void flush_cold_cpu() { hwy::FlushStream(); }

}  // namespace aliquot::kernels
#endif  // HWY_ONCE
