// Cross-entropy of next-token logits: the sum over rows of log sum e^z -
// z[target].  Its gradient is softmax(z) - onehot(target).
#pragma once

#include <cstdint>

#include "rmsnorm.h"

namespace gpt {

// Sum of the rows' losses.  targets has one entry per row.
template <class T>
double cross_entropy(Rows size, const uint8_t* targets,
                     const Compute<T>* logits);

// dlogits = factor times the gradient of the sum.
template <class T>
void cross_entropy_backward(Rows size, const uint8_t* targets, double factor,
                            const Compute<T>* logits, T* dlogits);

}  // namespace gpt
