// An exact sum of squares: a long fixed-point integer.
//
// The exponent range is cut into classes of 288: class c holds the elements
// with exponent in [288 c - 154, 288 c + 134), so every f32, f16 and bf16 is in
// class 0, and f64 has classes -4 to 4.  A class sum is one 768 bit integer in
// units of the square of its smallest last bit, with room for 2^88 terms: it
// is exact, so it does not depend on the order of its terms.  Kept are the
// highest class seen and the one below.  An element of a lower class is less
// than 2^-288 of one of the highest, its square less than 2^-576; what is
// dropped depends only on which classes occur, again not on the order.
//
// Cost: a deposit is a shift and a carry, about 2 ns.
// Source: Kulisch's long accumulator; Demmel and Nguyen, Fast Reproducible
// Floating-Point Summation, 2013, for keeping only the top bins.
#pragma once

#include <cstdint>

#include "kernels/arithmetic/half.h"
#include "kernels/ops.h"

namespace aliquot::kernels {

inline constexpr int kClassWidth = 288;
inline constexpr int kClassLow = -154;  // lowest exponent of class 0
inline constexpr int kClassBias = 8;    // class + bias is stored; 0: empty
inline constexpr int kWordsApart = 2 * kClassWidth / 64;
static_assert(kWordsApart * 64 == 2 * kClassWidth);

// Exponent of the unit of class c: the square of the last bit of its smallest
// element.
ALQ_DEVICE constexpr int class_unit(int c) {
  return 2 * (kClassLow + kClassWidth * c - 52);
}

ALQ_DEVICE constexpr int class_of_exponent(int exponent) {
  const int shifted = exponent - kClassLow + 16 * kClassWidth;
  return shifted / kClassWidth - 16;
}

// floor(log2 |x|) for normal x; -1022 for denormals, whose last bit it gives.
ALQ_DEVICE inline int exponent_of_bits(uint64_t magnitude) {
  const int biased = static_cast<int>(magnitude >> 52);
  return (biased == 0 ? 1 : biased) - 1023;
}

// words += value, from word `at` on; two's complement.
ALQ_DEVICE inline void add_words(uint64_t* words, int at, const uint64_t* value,
                                 int count, bool negative) {
  uint64_t carry = 0;
  const uint64_t fill = negative ? ~uint64_t{0} : 0;
  for (int i = at; i < NormBins::kWords; ++i) {
    const uint64_t add = i - at < count ? value[i - at] : fill;
    if (i - at >= count && carry == (negative ? 1u : 0u)) return;
    const uint64_t sum = words[i] + add;
    const uint64_t out = sum + carry;
    carry = (sum < add ? 1u : 0u) + (out < sum ? 1u : 0u);
    words[i] = out;
  }
}

// The words of class c, after making room for it; null when it is too low.
ALQ_DEVICE inline uint64_t* class_words(NormBins* bins, int c) {
  const int64_t stored = c + kClassBias;
  if (stored > bins->top) {
    const bool next = stored == bins->top + 1 && bins->top != 0;
    for (int i = 0; i < NormBins::kWords; ++i) {
      bins->low[i] = next ? bins->high[i] : 0;
      bins->high[i] = 0;
    }
    bins->top = stored;
  }
  if (stored == bins->top) return bins->high;
  return stored == bins->top - 1 ? bins->low : nullptr;
}

// words += value * 2^exponent, in class c.  Bits below the unit are zero.
ALQ_DEVICE inline void deposit(uint64_t* words, int c, int64_t value,
                               int exponent) {
  int position = exponent - class_unit(c);
  if (position < 0) {
    value >>= -position;
    position = 0;
  }
  const int shift = position % 64;
  const uint64_t v = static_cast<uint64_t>(value);
  const uint64_t sign = value < 0 ? ~uint64_t{0} : 0;
  const uint64_t parts[2] = {
      v << shift, shift == 0 ? sign : (v >> (64 - shift)) | (sign << shift)};
  add_words(words, position / 64, parts, 2, value < 0);
}

// bins += x^2 for finite x.
ALQ_DEVICE inline void deposit_square(NormBins* bins, double x) {
  const uint64_t bits = bit_cast_to<uint64_t>(x) & ~(uint64_t{1} << 63);
  if (bits == 0) return;
  const int exponent = exponent_of_bits(bits);
  const int c = class_of_exponent(exponent);
  uint64_t* words = class_words(bins, c);
  if (words == nullptr) return;
  const uint64_t implicit = bits >> 52 != 0 ? uint64_t{1} << 52 : 0;
  const uint64_t mantissa = (bits & ((uint64_t{1} << 52) - 1)) | implicit;
  // The square of hi 2^27 + lo, in pieces below 2^63.
  const uint64_t hi = mantissa >> 27, lo = mantissa & ((1u << 27) - 1);
  const int unit = 2 * (exponent - 52);
  deposit(words, c, static_cast<int64_t>(lo * lo), unit);
  deposit(words, c, static_cast<int64_t>(hi * lo), unit + 28);
  deposit(words, c, static_cast<int64_t>(hi * hi), unit + 54);
}

}  // namespace aliquot::kernels
