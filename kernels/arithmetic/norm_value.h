// Merging norm bins and reading their value, on any target.  Both exact up to
// the one rounding of the result.  Cost: tens of nanoseconds.
#pragma once

#include <cmath>

#include "kernels/arithmetic/bins.h"

namespace aliquot::kernels {

// value = mantissa * 2^exponent; the mantissa has 64 bits, the last one set if
// anything below it is not zero.
struct WideNorm {
  uint64_t mantissa;
  int exponent;
};

ALQ_DEVICE inline int leading_zeros(uint64_t x) {
  int zeros = 0;
  for (int half = 32; half > 0; half /= 2) {
    if (x >> (64 - half) != 0) continue;
    zeros += half;
    x <<= half;
  }
  return zeros;
}

ALQ_DEVICE inline WideNorm widen(const NormBins& bins) {
  constexpr int kAllWords = NormBins::kWords + kWordsApart;
  uint64_t all[kAllWords] = {};
  for (int i = 0; i < NormBins::kWords; ++i) all[i] = bins.low[i];
  uint64_t carry = 0;
  for (int i = kWordsApart; i < kAllWords; ++i) {
    const uint64_t word = bins.high[i - kWordsApart];
    const uint64_t sum = all[i] + word;
    const uint64_t out = sum + carry;
    carry = (sum < word ? 1u : 0u) + (out < sum ? 1u : 0u);
    all[i] = out;
  }
  int top = kAllWords - 1;
  while (top >= 0 && all[top] == 0) --top;
  if (top < 0) return {0, 0};
  const int zeros = leading_zeros(all[top]);
  const uint64_t next = top > 0 ? all[top - 1] : 0;
  uint64_t mantissa = all[top] << zeros;
  uint64_t rest = next;
  if (zeros != 0) {
    mantissa |= next >> (64 - zeros);
    rest = next << zeros;
  }
  for (int i = 0; i + 1 < top; ++i) rest |= all[i];
  if (rest != 0) mantissa |= 1;
  const int c = static_cast<int>(bins.top) - kClassBias;
  return {mantissa, class_unit(c - 1) + 64 * top - zeros};
}

ALQ_DEVICE inline void bins_merge(NormBins* into, const NormBins& from) {
  if (from.nonfinite > 0) {
    const bool first = into->nonfinite == 0 || from.first_bad < into->first_bad;
    if (first) into->first_bad = from.first_bad;
    into->nonfinite += from.nonfinite;
  } else if (into->nonfinite == 0) {
    into->first_bad = -1;
  }
  if (from.top == 0) return;
  const int c = static_cast<int>(from.top) - kClassBias;
  uint64_t* high = class_words(into, c);
  if (high != nullptr) add_words(high, 0, from.high, NormBins::kWords, false);
  // May be too low for `into`, never too high.
  if (from.top == 1) return;
  uint64_t* low = class_words(into, c - 1);
  if (low != nullptr) add_words(low, 0, from.low, NormBins::kWords, false);
}

ALQ_DEVICE inline double bins_value(const NormBins& bins) {
  const WideNorm wide = widen(bins);
  if (wide.mantissa == 0) return 0.0;
  // Kept bits: 53, fewer where the result is a denormal.
  int drop = 11;
  const int lowest = -1074 - wide.exponent;
  if (lowest > drop) drop = lowest;
  if (drop > 64) return 0.0;
  const uint64_t kept = drop == 64 ? 0 : wide.mantissa >> drop;
  const uint64_t rest =
      drop == 64 ? wide.mantissa : wide.mantissa << (64 - drop);
  const uint64_t half = uint64_t{1} << 63;
  const bool up = rest > half || (rest == half && (kept & 1) != 0);
  return std::ldexp(static_cast<double>(kept + (up ? 1 : 0)),
                    wide.exponent + drop);
}

ALQ_DEVICE inline double bins_root(const NormBins& bins) {
  const WideNorm wide = widen(bins);
  if (wide.mantissa == 0) return 0.0;
  const bool odd = (wide.exponent & 1) != 0;
  const double mantissa = static_cast<double>(wide.mantissa);
  return std::ldexp(std::sqrt(odd ? 2.0 * mantissa : mantissa),
                    (wide.exponent - (odd ? 1 : 0)) / 2);
}

}  // namespace aliquot::kernels
