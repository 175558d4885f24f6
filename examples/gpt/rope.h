// Rotary position embedding: the pair (x[i], x[i + d/2]) of every head at
// position p is turned by p * 10000^(-2i/d).  The backward pass turns back.
// Cost: one pass in place.  Source: Su et al., RoFormer.
#pragma once

#include <cstdint>
#include <vector>

#include "number.h"

namespace gpt {

template <class C>
class Rope {
 public:
  Rope(int64_t seq, int64_t head_dim);

  // x holds rows of `heads` heads; row r is at position r % seq.
  template <class T>
  void turn(int64_t rows, int64_t heads, T* x) const {
    rotate(rows, heads, x, C{1});
  }
  template <class T>
  void turn_back(int64_t rows, int64_t heads, T* x) const {
    rotate(rows, heads, x, C{-1});
  }

  // [seq, head_dim / 2]
  const std::vector<C>& cosines() const { return cos_; }
  const std::vector<C>& sines() const { return sin_; }

 private:
  template <class T>
  void rotate(int64_t rows, int64_t heads, T* x, C direction) const {
    for (int64_t r = 0; r < rows; ++r) {
      const C* cos = cos_.data() + r % seq_ * half_;
      const C* sin = sin_.data() + r % seq_ * half_;
      for (int64_t h = 0; h < heads; ++h, x += 2 * half_) {
        for (int64_t i = 0; i < half_; ++i) {
          const C a = up(x[i]), b = up(x[i + half_]);
          const C s = direction * sin[i];
          x[i] = down<T>(a * cos[i] - b * s);
          x[i + half_] = down<T>(b * cos[i] + a * s);
        }
      }
    }
  }

  int64_t seq_, half_;
  std::vector<C> cos_, sin_;
};

template <class C>
Rope<C>::Rope(int64_t seq, int64_t head_dim) : seq_(seq), half_(head_dim / 2) {
  for (int64_t p = 0; p < seq; ++p) {
    for (int64_t i = 0; i < half_; ++i) {
      const double exponent =
          -2.0 * static_cast<double>(i) / static_cast<double>(head_dim);
      const double angle = static_cast<double>(p) * std::pow(10000.0, exponent);
      cos_.push_back(static_cast<C>(std::cos(angle)));
      sin_.push_back(static_cast<C>(std::sin(angle)));
    }
  }
}

}  // namespace gpt
