// Copies bytes.  Accesses of 16 bytes where both sides lie alike within 16,
// else of the widest power of two that they share.  The two must not overlap,
// unless they are the same.
#include "kernels/cuda/move.h"

namespace aliquot::kernels {
namespace {

template <int kBytes>
__device__ void copy(const CopyArgs& a) {
  const MoveBody<uint8_t> move = {
      {static_cast<uint8_t*>(a.dst), static_cast<const uint8_t*>(a.src)}};
  stream<kBytes, 4>(move, a.bytes);
}

}  // namespace

ALQ_KERNEL(alq_copy, CopyArgs) {
  const uintptr_t apart = reinterpret_cast<uintptr_t>(args.dst) ^
                          reinterpret_cast<uintptr_t>(args.src);
  if (apart % 16 == 0) return copy<16>(args);
  if (apart % 8 == 0) return copy<8>(args);
  if (apart % 4 == 0) return copy<4>(args);
  if (apart % 2 == 0) return copy<2>(args);
  copy<1>(args);
}

}  // namespace aliquot::kernels
