// Root-mean-square norm over rows: y = x / rms(x) * w, rms(x)^2 = mean(x^2) +
// 1e-5.  With s = 1 / rms(x):
//   dx = s (dy w - x s^2 mean(dy w x)),   dw = sum over rows of dy x s.
// Cost: one pass forward, two backward.
// Source: Zhang and Sennrich, Root Mean Square Layer Normalization.
#pragma once

#include <cstdint>

#include "number.h"

namespace gpt {

struct Rows {
  int64_t rows, cols;
};

// scale[row] keeps s for the backward pass.
template <class T>
void rmsnorm(Rows size, const T* x, const T* w, T* y, Compute<T>* scale);

// dx += the gradient (a residual's gradient is already there); dw is
// overwritten with the sum over all rows.
template <class T>
void rmsnorm_backward(Rows size, const T* x, const T* w,
                      const Compute<T>* scale, const Compute<T>* dy, T* dx,
                      Compute<T>* dw);

}  // namespace gpt
