// Sums and maxima in eight fixed lanes: fast, because compilers vectorise them,
// and the same bits for the same values, because the order is fixed.
#pragma once

#include <cstdint>

namespace gpt {

// Sum of term(0) ... term(count - 1).
template <class C, class Term>
C lane_sum(int64_t count, Term term) {
  C lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int64_t l = 0; l < 8; ++l) lanes[l] += term(i + l);
  }
  for (int64_t l = 0; i < count; ++i, ++l) lanes[l] += term(i);
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// Largest of count >= 1 values.
template <class C>
C lane_max(int64_t count, const C* x) {
  C lanes[8];
  for (C& lane : lanes) lane = x[0];
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int64_t l = 0; l < 8; ++l) {
      lanes[l] = lanes[l] < x[i + l] ? x[i + l] : lanes[l];
    }
  }
  for (; i < count; ++i) lanes[0] = lanes[0] < x[i] ? x[i] : lanes[0];
  for (const C lane : lanes) lanes[0] = lanes[0] < lane ? lane : lanes[0];
  return lanes[0];
}

}  // namespace gpt
