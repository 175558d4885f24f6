// One element of an AdamW and of an SGD step, T is f32 or f64: the definition
// that the vector code follows operation for operation.
// Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019
// (decay before the update, as torch.optim.AdamW); torch.optim.SGD.
#pragma once

#include <cmath>

#include "kernels/arithmetic/combine.h"

namespace aliquot::kernels {

template <typename T>
struct AdamWScale {
  T grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2;
  T decay, step_size, inv_sqrt_bc2, eps;
};

template <typename T>
ALQ_DEVICE inline void adamw_element(const AdamWScale<T>& c, T grad, T* p, T* m,
                                     T* v) {
  const T g = grad * c.grad_scale;
  const T m1 = *m * c.beta1 + g * c.one_minus_beta1;
  const T v1 = *v * c.beta2 + (g * g) * c.one_minus_beta2;
  const T decayed = *p * c.decay;
  const T denominator = std::sqrt(v1) * c.inv_sqrt_bc2 + c.eps;
  *m = canonical(m1);
  *v = canonical(v1);
  *p = canonical(decayed - (m1 * c.step_size) / denominator);
}

template <typename T>
struct SgdScale {
  T grad_scale, lr, weight_decay, momentum, one_minus_dampening;
  bool nesterov, first, has_momentum;
};

template <typename T>
ALQ_DEVICE inline void sgd_element(const SgdScale<T>& c, T grad, T* p, T* buf) {
  T g = grad * c.grad_scale + *p * c.weight_decay;
  if (c.has_momentum) {
    const T b = c.first ? g : *buf * c.momentum + g * c.one_minus_dampening;
    g = c.nesterov ? g + b * c.momentum : b;
    *buf = canonical(b);
  }
  *p = canonical(*p - g * c.lr);
}

}  // namespace aliquot::kernels
