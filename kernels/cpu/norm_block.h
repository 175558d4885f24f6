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
  // The sum of slice j is sum[j] * 2^(top - kSliceBits * (j + 1)).
  int64_t sum[kMaxSlices];
  int slices;
  int c;         // class
  int top;       // every square is below 2^top
  int grid_top;  // the same after scaling
  bool irregular;
};

inline constexpr int slices_for(int bits) {
  return (bits + kSliceBits - 1) / kSliceBits;
}

// 2^exponent in the range of f64, denormals included.
inline double power_of_two(int exponent) { return std::ldexp(1.0, exponent); }

// Adding and taking away this rounds to the unit of slice j.
inline double slice_magic(int grid_top, int j) {
  return std::ldexp(1.5, grid_top - kSliceBits * (j + 1) + 52);
}

}  // namespace aliquot::kernels
