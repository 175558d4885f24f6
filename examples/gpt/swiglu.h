// y = silu(gate) * up, elementwise, silu(g) = g / (1 + e^-g).
//   dgate = dy up sig (1 + gate (1 - sig)),   dup = dy silu(gate).
// Source: Shazeer, GLU Variants Improve Transformer.
#pragma once

#include <cstdint>

#include "number.h"

namespace gpt {

template <class T>
void swiglu(int64_t count, const T* gate, const T* up_, T* y);

// Overwrites gate and up_ with their gradients.
template <class T>
void swiglu_backward(int64_t count, const T* dy, T* gate, T* up_);

}  // namespace gpt
