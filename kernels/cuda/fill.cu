// dst[i] = a pattern of 1, 2, 4 or 8 bytes: one write.
#include "kernels/cuda/stream.h"

namespace aliquot::kernels {
namespace {

struct FillBody {
  uint8_t* dst;
  uint64_t pattern;  // repeats every 8 bytes from dst on

  template <int N>
  __device__ Lead<N> lead() const {
    Lead<N> lead;
    lead.add(dst);
    return lead;
  }

  template <int N>
  __device__ Pack<uint8_t, N> load(int64_t i) const {
    static_assert(N == 1 || N == 16);
    const int turn = static_cast<int>(i & 7) * 8;
    const uint64_t back = turn == 0 ? 0 : pattern << (64 - turn);
    const uint64_t turned = pattern >> turn | back;
    Pack<uint8_t, N> out;
    if constexpr (N == 1) {
      out.at[0] = static_cast<uint8_t>(turned & 0xff);
    } else {
      const uint64_t twice[2] = {turned, turned};
      std::memcpy(&out, twice, sizeof(out));
    }
    return out;
  }

  template <int N>
  __device__ void finish(int64_t i, const Pack<uint8_t, N>& x) const {
    store_pack<N>(dst + i, x);
  }
};

__device__ uint64_t repeat(uint64_t bits, int64_t width) {
  switch (width) {
    case 1: return (bits & 0xff) * 0x0101010101010101u;
    case 2: return (bits & 0xffff) * 0x0001000100010001u;
    case 4: return (bits & 0xffffffff) * 0x0000000100000001u;
    default: return bits;
  }
}

}  // namespace

ALQ_KERNEL(alq_fill, FillArgs) {
  const FillBody body = {static_cast<uint8_t*>(args.dst),
                         repeat(args.bits, args.width)};
  stream<16, 4>(body, args.count * args.width);
}

}  // namespace aliquot::kernels
