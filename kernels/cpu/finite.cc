// The first infinite or NaN element.  One read of the data: a value is not
// finite when all bits of its exponent are set, so blocks are scanned as
// integers and only a block that has one is looked at again.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu.h"

namespace aliquot::kernels {

namespace {

constexpr int64_t kBlock = 4096;

template <typename Bits, Bits kExponent>
int64_t first_bad(const void* src, int64_t count) {
  const auto* bytes = static_cast<const unsigned char*>(src);
  auto load = [bytes](int64_t i) {
    Bits bits;
    std::memcpy(&bits, bytes + i * static_cast<int64_t>(sizeof(Bits)),
                sizeof bits);
    return static_cast<Bits>(bits & kExponent);
  };
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    int64_t end = std::min(begin + kBlock, count);
    Bits any = 0;  // this vectorises, an early exit does not
    for (int64_t i = begin; i < end; ++i) {
      any = static_cast<Bits>(any | -Bits{load(i) == kExponent});
    }
    if (any == 0) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (load(i) == kExponent) return i;
    }
  }
  return -1;
}

}  // namespace

void finite_cpu(const FiniteArgs& args) {
  int64_t at = -1;
  switch (args.dtype) {
    case ALQ_F64:
      at = first_bad<uint64_t, 0x7ff0000000000000u>(args.src, args.count);
      break;
    case ALQ_F32:
      at = first_bad<uint32_t, 0x7f800000u>(args.src, args.count);
      break;
    case ALQ_F16:
      at = first_bad<uint16_t, 0x7c00u>(args.src, args.count);
      break;
    case ALQ_BF16:
      at = first_bad<uint16_t, 0x7f80u>(args.src, args.count);
      break;
    default: break;
  }
  if (at < 0) return;
  int64_t bad = args.base + at;
  if (*args.first_bad < 0 || bad < *args.first_bad) *args.first_bad = bad;
}

}  // namespace aliquot::kernels
