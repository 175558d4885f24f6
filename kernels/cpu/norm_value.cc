// Merging norm bins and reading their value.  Both exact up to the one rounding
// of the result.  Cost: tens of nanoseconds.
#include <bit>
#include <cmath>

#include "kernels/arithmetic/bins.h"
#include "kernels/ops.h"

namespace aliquot::kernels {
namespace {

constexpr int kAllWords = NormBins::kWords + kWordsApart;

// value = mantissa * 2^exponent; the mantissa has 64 bits, the last one set if
// anything below it is not zero.
struct Wide {
  uint64_t mantissa;
  int exponent;
};

void add(uint64_t* into, const uint64_t* words, int count, int at) {
  uint64_t carry = 0;
  for (int i = at; i < kAllWords; ++i) {
    const uint64_t word = i - at < count ? words[i - at] : 0;
    const uint64_t sum = into[i] + word;
    const uint64_t out = sum + carry;
    carry = (sum < word ? 1u : 0u) + (out < sum ? 1u : 0u);
    into[i] = out;
  }
}

Wide widen(const NormBins& bins) {
  uint64_t all[kAllWords] = {};
  add(all, bins.low, NormBins::kWords, 0);
  add(all, bins.high, NormBins::kWords, kWordsApart);
  int top = kAllWords - 1;
  while (top >= 0 && all[top] == 0) --top;
  if (top < 0) return {0, 0};
  const int zeros = std::countl_zero(all[top]);
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

}  // namespace

void norm_merge(NormBins* into, const NormBins& from) {
  merge_bins(into, from);
}

double norm_value(const NormBins& bins) {
  const Wide wide = widen(bins);
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

double norm_root(const NormBins& bins) {
  const Wide wide = widen(bins);
  if (wide.mantissa == 0) return 0.0;
  const bool odd = (wide.exponent & 1) != 0;
  const double mantissa = static_cast<double>(wide.mantissa);
  return std::ldexp(std::sqrt(odd ? 2.0 * mantissa : mantissa),
                    (wide.exponent - (odd ? 1 : 0)) / 2);
}

}  // namespace aliquot::kernels
