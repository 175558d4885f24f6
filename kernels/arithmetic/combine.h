// How a reduction combines two elements.  Every result that is a NaN is the
// one canonical NaN (0x7fc00000, 0x7ff8000000000000): which operand's payload
// survives an addition is the compiler's choice, and the sign of a new NaN is
// the machine's.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/arithmetic/half.h"

namespace aliquot::kernels {

template <typename T>
ALQ_DEVICE inline T canonical_nan() {
  if constexpr (std::is_same_v<T, float>) {
    return bit_cast_to<float>(0x7fc00000u);
  } else {
    return bit_cast_to<double>(uint64_t{0x7ff8000000000000});
  }
}

template <typename T>
ALQ_DEVICE inline T canonical(T x) {
  return x != x ? canonical_nan<T>() : x;
}

// Integers wrap.
template <typename T>
ALQ_DEVICE inline T combine_sum(T acc, T x) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(
        static_cast<U>(static_cast<U>(acc) + static_cast<U>(x)));
  } else {
    return acc + x;
  }
}

// A NaN stays; of two equal values (-0 and 0 too) the earlier stays.
template <typename T>
ALQ_DEVICE inline T combine_min(T acc, T x) {
  return x < acc || x != x ? x : acc;
}

template <typename T>
ALQ_DEVICE inline T combine_max(T acc, T x) {
  return x > acc || x != x ? x : acc;
}

}  // namespace aliquot::kernels
