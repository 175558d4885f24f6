// Element types of the model: f64, f32 and bf16.  A bf16 tensor is stored in
// bf16 and computed with in f32; up() and down() go between the two.  All of it
// is exact or rounds to nearest even, so that results depend on values alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define GPT_DEVICE __host__ __device__
#else
#define GPT_DEVICE
#endif

namespace gpt {

template <class To, class From>
GPT_DEVICE inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

struct Bf16 {
  uint16_t bits;
};

template <class T>
struct Numeric {
  using Compute = T;
};
template <>
struct Numeric<Bf16> {
  using Compute = float;
};
template <class T>
using Compute = typename Numeric<T>::Compute;

GPT_DEVICE inline double up(double x) { return x; }
GPT_DEVICE inline float up(float x) { return x; }
GPT_DEVICE inline float up(Bf16 x) {
  return bits_as<float>(static_cast<uint32_t>(x.bits) << 16);
}

template <class T>
GPT_DEVICE inline T down(Compute<T> x) {
  if constexpr (sizeof(T) == 2) {
    const auto bits = bits_as<uint32_t>(x);
    const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return T{static_cast<uint16_t>((nan ? bits | 0x400000u : rounded) >> 16)};
  } else {
    return x;
  }
}

// e^x.  For f32 a polynomial without branches, which compilers vectorise and
// which has the same bits everywhere: x = n ln 2 + r, |r| <= ln 2 / 2, and a
// degree-6 polynomial for e^r (relative error below 2e-7).
// Source: Cephes, expf.c.
GPT_DEVICE inline double exp_of(double x) { return std::exp(x); }
GPT_DEVICE inline float exp_of(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding rounds to integer
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * 1.44269504f + kShift;
  const float n = shifted - kShift;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const uint32_t exponent = (bits_as<uint32_t>(shifted) & 0x1ffu) << 23;
  return bits_as<float>(bits_as<uint32_t>(p) + exponent);
}

}  // namespace gpt
