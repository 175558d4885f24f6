// Fill with a pattern and copy.  Both run at the speed of the C library's
// memset and memcpy, or of plain vector stores for a pattern of mixed bytes.
#include "kernels/cpu/simd.h"
// The target list comes before Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/fill.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstring>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dispatch.h"

HWY_BEFORE_NAMESPACE();
namespace aliquot::kernels {
namespace HWY_NAMESPACE {

// `pattern` repeats every 8 bytes from dst on.
void fill(uint8_t* dst, size_t bytes, uint64_t pattern) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<uint64_t, 4> d;
  const auto lanes = hn::Set(d, pattern);
  const size_t step = hn::Lanes(d) * sizeof(uint64_t);
  for (; i + step <= bytes; i += step) {
    hn::StoreU(lanes, d, reinterpret_cast<uint64_t*>(dst + i));
  }
#endif
  for (; i < bytes; i += 8) {
    std::memcpy(dst + i, &pattern, bytes - i < 8 ? bytes - i : 8);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace aliquot::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aliquot::kernels {
namespace {

constexpr SimdTable<void(uint8_t*, size_t, uint64_t)> kFill =
    ALQ_SIMD_TABLE(fill);

uint64_t repeat(uint64_t bits, int64_t width) {
  switch (width) {
    case 1: return (bits & 0xff) * 0x0101010101010101u;
    case 2: return (bits & 0xffff) * 0x0001000100010001u;
    case 4: return (bits & 0xffffffff) * 0x0000000100000001u;
    default: return bits;
  }
}

}  // namespace

void fill_cpu(const FillArgs& args) {
  if (args.count <= 0) return;
  const uint64_t pattern = repeat(args.bits, args.width);
  const size_t bytes =
      static_cast<size_t>(args.count) * static_cast<size_t>(args.width);
  if (pattern == repeat(pattern, 1)) {
    std::memset(args.dst, static_cast<int>(pattern & 0xff), bytes);
  } else {
    kFill[chosen_target()](static_cast<uint8_t*>(args.dst), bytes, pattern);
  }
}

void copy_cpu(const CopyArgs& args) {
  if (args.bytes <= 0) return;
  std::memmove(args.dst, args.src, static_cast<size_t>(args.bytes));
}

}  // namespace aliquot::kernels
#endif  // HWY_ONCE
