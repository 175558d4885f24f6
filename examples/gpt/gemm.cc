#include "gemm.h"

#include <cblas.h>

#include <type_traits>

namespace gpt {
namespace {

struct Shape {
  blasint m, n, k;
};

template <class C>
Shape shape_of(In<C> a, Out<C> c) {
  const int64_t k = a.flipped ? a.rows : a.cols;
  return {static_cast<blasint>(c.rows), static_cast<blasint>(c.cols),
          static_cast<blasint>(k)};
}

template <class C>
CBLAS_TRANSPOSE order(In<C> m) {
  return m.flipped ? CblasTrans : CblasNoTrans;
}

void multiply(double alpha, In<double> a, In<double> b, double beta,
              Out<double> c) {
  const Shape s = shape_of(a, c);
  cblas_dgemm(CblasRowMajor, order(a), order(b), s.m, s.n, s.k, alpha, a.data,
              static_cast<blasint>(a.ld), b.data, static_cast<blasint>(b.ld),
              beta, c.data, static_cast<blasint>(c.ld));
}

void multiply(float alpha, In<float> a, In<float> b, float beta, Out<float> c) {
  const Shape s = shape_of(a, c);
  cblas_sgemm(CblasRowMajor, order(a), order(b), s.m, s.n, s.k, alpha, a.data,
              static_cast<blasint>(a.ld), b.data, static_cast<blasint>(b.ld),
              beta, c.data, static_cast<blasint>(c.ld));
}

}  // namespace

template <class T>
Compute<T>* Gemm<T>::panel(Panel& panel, int64_t count) {
  if (panel.count < count) panel = {pool_.take<C>(count), count};
  return panel.data;
}

template <class T>
In<Compute<T>> Gemm<T>::widen(In<T> m, Panel& space) {
  if constexpr (std::is_same_v<T, C>) {
    return m;
  } else {
    C* to = panel(space, m.rows * m.cols);
    for (int64_t r = 0; r < m.rows; ++r) {
      const T* from = m.data + r * m.ld;
      for (int64_t j = 0; j < m.cols; ++j) to[r * m.cols + j] = up(from[j]);
    }
    return {to, m.rows, m.cols, m.cols, m.flipped};
  }
}

template <class T>
void Gemm<T>::operator()(C alpha, In<T> a, In<T> b, C beta, Out<C> c) {
  multiply(alpha, widen(a, a_), widen(b, b_), beta, c);
}

template <>
void Gemm<Bf16>::operator()(C alpha, In<Bf16> a, In<Bf16> b, C beta,
                            Out<Bf16> c) {
  const Out<C> sum = out(panel(c_, c.rows * c.cols), c.rows, c.cols);
  multiply(alpha, widen(a, a_), widen(b, b_), C{0}, sum);
  for (int64_t r = 0; r < c.rows; ++r) {
    const C* from = sum.data + r * sum.ld;
    Bf16* to = c.data + r * c.ld;
    for (int64_t j = 0; j < c.cols; ++j) {
      const C old = beta == C{0} ? C{0} : beta * up(to[j]);
      to[j] = down<Bf16>(from[j] + old);
    }
  }
}

void use_one_blas_thread() { openblas_set_num_threads(1); }

template class Gemm<double>;
template class Gemm<float>;
template class Gemm<Bf16>;

}  // namespace gpt
