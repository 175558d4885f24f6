#include "rmsnorm.h"

#include <algorithm>
#include <cmath>

#include "lanes.h"

namespace gpt {

template <class T>
void rmsnorm(Rows size, const T* x, const T* w, T* y, Compute<T>* scale) {
  using C = Compute<T>;
  const auto n = static_cast<C>(size.cols);
  for (int64_t r = 0; r < size.rows; ++r, x += size.cols, y += size.cols) {
    const C squares =
        lane_sum<C>(size.cols, [x](int64_t j) { return up(x[j]) * up(x[j]); });
    const C s = C{1} / std::sqrt(squares / n + static_cast<C>(1e-5));
    for (int64_t j = 0; j < size.cols; ++j) {
      y[j] = down<T>(up(x[j]) * s * up(w[j]));
    }
    scale[r] = s;
  }
}

template <class T>
void rmsnorm_backward(Rows size, const T* x, const T* w,
                      const Compute<T>* scale, const Compute<T>* dy, T* dx,
                      Compute<T>* dw) {
  using C = Compute<T>;
  const auto n = static_cast<C>(size.cols);
  std::fill_n(dw, size.cols, C{0});
  for (int64_t r = 0; r < size.rows; ++r) {
    const C s = scale[r];
    const C mean =
        lane_sum<C>(size.cols,
                    [=](int64_t j) { return dy[j] * up(w[j]) * up(x[j]); }) /
        n;
    const C pull = s * s * mean;
    for (int64_t j = 0; j < size.cols; ++j) {
      const C xj = up(x[j]);
      dx[j] = down<T>(up(dx[j]) + s * (dy[j] * up(w[j]) - xj * pull));
      dw[j] += dy[j] * xj * s;
    }
    x += size.cols;
    dx += size.cols;
    dy += size.cols;
  }
}

#define GPT_INSTANTIATE(T)                                                    \
  template void rmsnorm<T>(Rows, const T*, const T*, T*, Compute<T>*);        \
  template void rmsnorm_backward<T>(Rows, const T*, const T*,                 \
                                    const Compute<T>*, const Compute<T>*, T*, \
                                    Compute<T>*);
GPT_INSTANTIATE(double)
GPT_INSTANTIATE(float)
GPT_INSTANTIATE(Bf16)
#undef GPT_INSTANTIATE

}  // namespace gpt
