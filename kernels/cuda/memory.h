// Reads and writes of 1 to N elements.  N elements together are one access of
// the GPU, of up to 16 bytes, and must be aligned to their size; a single
// element may lie anywhere, at a byte a time if need be.
#pragma once

#include <cstring>

#include "kernels/arithmetic/half.h"
#include "kernels/cuda/device.h"

namespace aliquot::kernels {

template <typename S, int N>
struct alignas(sizeof(S) * N) Pack {
  S at[N];
};

template <int kBytes>
struct AccessOf;
template <>
struct AccessOf<16> {
  using type = uint4;
};
template <>
struct AccessOf<8> {
  using type = uint2;
};
template <>
struct AccessOf<4> {
  using type = uint32_t;
};
template <>
struct AccessOf<2> {
  using type = uint16_t;
};
template <>
struct AccessOf<1> {
  using type = uint8_t;
};

__device__ inline bool is_aligned(const void* p, int bytes) {
  return reinterpret_cast<uintptr_t>(p) % static_cast<unsigned>(bytes) == 0;
}

template <typename P>
__device__ inline P load_whole(const void* p) {
  using Access = typename AccessOf<sizeof(P)>::type;
  const Access raw = *static_cast<const Access*>(p);
  P out;
  std::memcpy(&out, &raw, sizeof(out));
  return out;
}

template <typename P>
__device__ inline void store_whole(void* p, const P& value) {
  using Access = typename AccessOf<sizeof(P)>::type;
  Access raw;
  std::memcpy(&raw, &value, sizeof(raw));
  *static_cast<Access*>(p) = raw;
}

template <int N, typename S>
__device__ inline Pack<S, N> load_pack(const S* p) {
  if (N > 1 || is_aligned(p, sizeof(S))) return load_whole<Pack<S, N>>(p);
  uint8_t bytes[sizeof(S)];
  const uint8_t* from = reinterpret_cast<const uint8_t*>(p);
#pragma unroll
  for (unsigned i = 0; i < sizeof(S); ++i) bytes[i] = from[i];
  Pack<S, N> out;
  std::memcpy(&out, bytes, sizeof(S));
  return out;
}

template <int N, typename S>
__device__ inline void store_pack(S* p, const Pack<S, N>& value) {
  if (N > 1 || is_aligned(p, sizeof(S))) return store_whole(p, value);
  uint8_t bytes[sizeof(S)];
  std::memcpy(bytes, &value, sizeof(S));
  uint8_t* to = reinterpret_cast<uint8_t*>(p);
#pragma unroll
  for (unsigned i = 0; i < sizeof(S); ++i) to[i] = bytes[i];
}

// How many elements to skip so that every array is aligned to N elements from
// there on; kNever if there is no such number.
template <int N>
class Lead {
 public:
  static constexpr int64_t kNever = -1;

  template <typename S>
  __device__ void add(const S* p) {
    add(p, static_cast<int>(sizeof(S)));
  }

  __device__ void add(const void* p, int size) {
    const int bytes = N * size;
    const int off = static_cast<int>(reinterpret_cast<uintptr_t>(p) %
                                     static_cast<unsigned>(bytes));
    const int64_t lead = (bytes - off) % bytes / size;
    if (off % size != 0 || (known_ && lead != lead_)) never_ = true;
    lead_ = lead;
    known_ = true;
  }

  __device__ int64_t value() const { return never_ ? kNever : lead_; }

 private:
  int64_t lead_ = 0;
  bool known_ = false, never_ = false;
};

}  // namespace aliquot::kernels
