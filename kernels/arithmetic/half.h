// The two half types and every conversion between the four float types, as
// plain scalar code for any target.  All round to nearest even, once; denormals
// are kept; a NaN stays a NaN: narrowed to its sign and upper payload bits, and
// made quiet (bf16 to f32 is a shift and keeps every bit).
// Cost: a few integer operations.  Source: IEEE 754-2019 section 4.3.1; double
// rounding is avoided by rounding to odd first (Boldo and Melquiond, 2008).
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define ALQ_DEVICE __host__ __device__
#else
#define ALQ_DEVICE
#endif

namespace aliquot::kernels {

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

template <typename To, typename From>
ALQ_DEVICE inline To bit_cast_to(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

ALQ_DEVICE inline float bf16_to_f32(BF16 x) {
  return bit_cast_to<float>(static_cast<uint32_t>(x.bits) << 16);
}

ALQ_DEVICE inline BF16 f32_to_bf16(float x) {
  const uint32_t u = bit_cast_to<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) {
    return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  }
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// On a GPU the conversions of f16 are one instruction, but for a NaN.
ALQ_DEVICE inline float f16_to_f32(F16 x) {
#if defined(__CUDA_ARCH__)
  if ((x.bits & 0x7fffu) <= 0x7c00u) {
    float out;
    asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(x.bits));
    return out;
  }
  return bit_cast_to<float>((x.bits & 0x8000u) << 16 | 0x7fc00000u |
                            (x.bits & 0x3ffu) << 13);
#else
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 31u;
  const uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 31) {
    const uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
    return bit_cast_to<float>(sign | 0x7f800000u | quiet | (mantissa << 13));
  }
  if (exponent == 0) {  // zero or denormal: mantissa * 2^-24, exact
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return bit_cast_to<float>(sign | bit_cast_to<uint32_t>(value));
  }
  return bit_cast_to<float>(sign | ((exponent + 112u) << 23) |
                            (mantissa << 13));
#endif
}

ALQ_DEVICE inline F16 f32_to_f16(float x) {
  const uint32_t u = bit_cast_to<uint32_t>(x);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t a = u & 0x7fffffffu;
#if defined(__CUDA_ARCH__)
  uint16_t near;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(near) : "f"(x));
  const uint32_t nan = sign | 0x7e00u | ((a >> 13) & 0x3ffu);
  return {static_cast<uint16_t>(a > 0x7f800000u ? nan : near)};
#else
  uint32_t out;
  if (a > 0x7f800000u) {
    out = 0x7e00u | ((a >> 13) & 0x3ffu);
  } else if (a >= 0x477ff000u) {  // 65520 and above round to infinity
    out = 0x7c00u;
  } else if (a >= 0x38800000u) {  // at least 2^-14: normal
    const uint32_t rebased = a - 0x38000000u;
    out = (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13;
  } else if (a > 0x33000000u) {  // above 2^-25: denormal, in units of 2^-24
    const uint32_t mantissa = (a & 0x7fffffu) | 0x800000u;
    const uint32_t shift = 126u - (a >> 23);
    const uint32_t rest = mantissa & ((1u << shift) - 1u);
    const uint32_t tie = 1u << (shift - 1u);
    out = mantissa >> shift;
    if (rest > tie || (rest == tie && (out & 1u) != 0)) ++out;
  } else {
    out = 0;
  }
  return {static_cast<uint16_t>(sign | out)};
#endif
}

// Between f32 and f64.  A NaN is spelled out, for machines differ: its sign and
// upper payload bits, made quiet.
ALQ_DEVICE inline double f32_to_f64(float x) {
  const uint64_t u = bit_cast_to<uint32_t>(x);
  if ((u & 0x7fffffffu) <= 0x7f800000u) return static_cast<double>(x);
  return bit_cast_to<double>((u >> 31 << 63) | 0x7ff8000000000000u |
                             ((u & 0x7fffffu) << 29));
}

ALQ_DEVICE inline float f64_to_f32(double x) {
  const uint64_t u = bit_cast_to<uint64_t>(x);
  if ((u & 0x7fffffffffffffffu) <= 0x7ff0000000000000u) {
    return static_cast<float>(x);
  }
  return bit_cast_to<float>(static_cast<uint32_t>(u >> 63 << 31) | 0x7fc00000u |
                            static_cast<uint32_t>((u >> 29) & 0x3fffffu));
}

// The f32 nearest to x that is exact or has an odd last bit: rounding that to
// a half type equals rounding x itself.
ALQ_DEVICE inline float f64_to_f32_odd(double x) {
  const float near = f64_to_f32(x);
  const double back = static_cast<double>(near);
  uint32_t u = bit_cast_to<uint32_t>(near);
  const double magnitude = x < 0 ? -x : x;
  const double rounded = back < 0 ? -back : back;
  if (rounded > magnitude) --u;
  if (rounded > magnitude || rounded < magnitude) u |= 1u;
  return bit_cast_to<float>(u);
}

// convert<To>(x): the dtype conversions under one name.
ALQ_DEVICE inline void convert_into(float& to, float x) { to = x; }
ALQ_DEVICE inline void convert_into(float& to, double x) { to = f64_to_f32(x); }
ALQ_DEVICE inline void convert_into(float& to, F16 x) { to = f16_to_f32(x); }
ALQ_DEVICE inline void convert_into(float& to, BF16 x) { to = bf16_to_f32(x); }
ALQ_DEVICE inline void convert_into(double& to, float x) { to = f32_to_f64(x); }
ALQ_DEVICE inline void convert_into(double& to, double x) { to = x; }
ALQ_DEVICE inline void convert_into(double& to, F16 x) {
  to = f32_to_f64(f16_to_f32(x));
}
ALQ_DEVICE inline void convert_into(double& to, BF16 x) {
  to = f32_to_f64(bf16_to_f32(x));
}
ALQ_DEVICE inline void convert_into(F16& to, float x) { to = f32_to_f16(x); }
ALQ_DEVICE inline void convert_into(F16& to, double x) {
  to = f32_to_f16(f64_to_f32_odd(x));
}
ALQ_DEVICE inline void convert_into(BF16& to, float x) { to = f32_to_bf16(x); }
ALQ_DEVICE inline void convert_into(BF16& to, double x) {
  to = f32_to_bf16(f64_to_f32_odd(x));
}

template <typename To, typename From>
ALQ_DEVICE inline To convert(From x) {
  To to;
  convert_into(to, x);
  return to;
}

}  // namespace aliquot::kernels
