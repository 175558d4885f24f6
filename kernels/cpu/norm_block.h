// What one block of a norm hands from the vector code to the deposit.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/arithmetic/bins.h"

namespace aliquot::kernels {

inline constexpr int kSliceBits = 50;
inline constexpr int kMaxSlices = 12;
// The sum of a slice stays below 2^63.
inline constexpr int64_t kNormBlockF32 = 2048;
inline constexpr int64_t kNormBlockF64 = 1024;

struct NormBlock {
  // The sum of squares is the sum over j < parts of sum[j] * 2^exponent[j].
  int64_t sum[kMaxSlices];
  int exponent[kMaxSlices];
  int parts;
  int c;           // class
  bool irregular;  // nothing was summed: go element by element
};

// The bits of a block: every element is a multiple of 2^low, below 2^high.
struct Grid {
  int low, high;

  int width() const { return high - low; }
};

inline constexpr int slices_for(int bits) {
  return (bits + kSliceBits - 1) / kSliceBits;
}

// 2^exponent in the range of f64, denormals included.
inline double power_of_two(int exponent) { return std::ldexp(1.0, exponent); }

// Adding and taking away this rounds to a multiple of 2^unit.
inline double rounding_term(int unit) { return std::ldexp(1.5, unit + 52); }

}  // namespace aliquot::kernels
