// What a thread of the norm keeps: an exact sum of squares of elements of about
// one size, in registers, and how elements are taken apart.
//
// Elements are m * 2^q; the sum is a 192 bit integer in units of the square of
// the last bit of an element with (biased) exponent `base`, and takes elements
// with exponents in [base, base + width).  Others go where the sum goes at the
// end: to the words of the block (norm.cu).
// Cost: about 20 integer operations per f32 element, 12 per half.
#pragma once

#include "kernels/cuda/bins_merge.h"
#include "kernels/cuda/memory.h"

namespace aliquot::kernels {

using Wide = unsigned __int128;

// Of each dtype: bits; the exponent's; the largest width; where in the window
// an element that opens it goes; the position of an element with exponent e in
// the words of its class is 2 e + kPosition (see place_of for f64).
template <typename S>
struct NormFormat;

template <>
struct NormFormat<float> {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23, kWidth = 40, kBelow = 28;
  static constexpr int kPosition = 2 * -150 - class_unit(0);
};
template <>
struct NormFormat<F16> {
  using Bits = uint16_t;
  static constexpr int kMantissa = 10, kWidth = 19, kBelow = 14;
  static constexpr int kPosition = 2 * -25 - class_unit(0);
};
template <>
struct NormFormat<BF16> {
  using Bits = uint16_t;
  static constexpr int kMantissa = 7, kWidth = 22, kBelow = 17;
  static constexpr int kPosition = 2 * -134 - class_unit(0);
};
template <>
struct NormFormat<double> {
  using Bits = uint64_t;
  static constexpr int kMantissa = 52, kWidth = 32, kBelow = 24;
};

// An element without its sign: m * 2^(exponent + a constant).
struct Element {
  uint64_t m;
  int exponent;  // 1 for zero and denormals
};

template <typename S>
__device__ inline Element take_apart(const S& x) {
  using Format = NormFormat<S>;
  using Bits = typename Format::Bits;
  constexpr int kM = Format::kMantissa;
  const uint64_t u = bit_cast_to<Bits>(x);
  const uint64_t magnitude = u & ((uint64_t{1} << (8 * sizeof(Bits) - 1)) - 1);
  const int biased = static_cast<int>(magnitude >> kM);
  const uint64_t low = magnitude & ((uint64_t{1} << kM) - 1);
  if (biased == 0) return {low, 1};
  return {low | uint64_t{1} << kM, biased};
}

// The exponent field of infinity and NaN.
template <typename S>
__device__ constexpr int infinite_exponent() {
  return (1 << (8 * sizeof(S) - 1 - NormFormat<S>::kMantissa)) - 1;
}

// The class of elements with an exponent, and the position of their last bit's
// square in its words.
struct Place {
  int c, position;
};

template <typename S>
__device__ inline Place place_of(int exponent) {
  if constexpr (std::is_same_v<S, double>) {
    const int c = class_of_exponent(exponent - 1023);
    return {c, 2 * (exponent - 1075) - class_unit(c)};
  } else {
    return {0, 2 * exponent + NormFormat<S>::kPosition};
  }
}

struct Window {
  Wide192 sum = {};
  int base = 0, width = 0;

  __device__ bool takes(int exponent) const {
    return static_cast<unsigned>(exponent - base) <
           static_cast<unsigned>(width);
  }

  __device__ void add(uint64_t low, uint64_t high, uint64_t top) {
    sum.at[0] += low;
    const uint64_t carry = sum.at[0] < low ? 1 : 0;
    sum.at[1] += high;
    const uint64_t first = sum.at[1] < high ? 1 : 0;
    sum.at[1] += carry;
    const uint64_t second = sum.at[1] < carry ? 1 : 0;
    sum.at[2] += top + first + second;
  }
};

// Makes room for elements like those with `exponent`; the window is empty.
template <typename S>
__device__ inline void open_at(Window* window, int exponent) {
  using Format = NormFormat<S>;
  int base = exponent - Format::kBelow;
  int end = base + Format::kWidth;
  if constexpr (std::is_same_v<S, double>) {  // within a class
    const int first = place_of<S>(exponent).c * kClassWidth + kClassLow + 1023;
    if (base < first) base = first;
    if (base < 1) base = 1;
    if (end > first + kClassWidth) end = first + kClassWidth;
  }
  window->base = base;
  window->width = end - base;
}

// Adds what the window takes of a pack.
template <typename S, int N>
__device__ inline void add_pack(Window* window, const Element (&x)[N]) {
  if constexpr (sizeof(S) == 2) {
    // All squares of a pack fit into 64 bits.
    uint64_t sum = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const uint32_t m = static_cast<uint32_t>(x[j].m);
      if (!window->takes(x[j].exponent)) continue;
      sum += uint64_t{m * m} << (2 * (x[j].exponent - window->base));
    }
    window->add(sum, 0, 0);
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (!window->takes(x[j].exponent)) continue;
      const int shift = 2 * (x[j].exponent - window->base);
      if constexpr (sizeof(S) == 4) {
        const Wide square = Wide{x[j].m * x[j].m} << shift;
        window->add(static_cast<uint64_t>(square),
                    static_cast<uint64_t>(square >> 64), 0);
      } else {
        const Wide square = Wide{x[j].m} * x[j].m;
        const Wide shifted = square << shift;
        const uint64_t top =
            shift == 0 ? 0 : static_cast<uint64_t>(square >> (128 - shift));
        window->add(static_cast<uint64_t>(shifted),
                    static_cast<uint64_t>(shifted >> 64), top);
      }
    }
  }
}

}  // namespace aliquot::kernels
