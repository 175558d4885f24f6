// Matrix products through OpenBLAS, on one thread: C = alpha A B + beta C, all
// row-major.  bf16 operands are widened to f32 panels, multiplied in f32 and
// rounded once.  Cost: 2 m n k operations.
#pragma once

#include <cstdint>

#include "number.h"
#include "pool.h"

namespace gpt {

// A matrix as it lies in memory, read as its transpose if flipped.
template <class T>
struct In {
  const T* data;
  int64_t rows, cols, ld;
  bool flipped = false;

  In row_range(int64_t begin, int64_t end) const {
    return {data + begin * ld, end - begin, cols, ld, flipped};
  }
};

template <class T>
struct Out {
  T* data;
  int64_t rows, cols, ld;

  Out row_range(int64_t begin, int64_t end) const {
    return {data + begin * ld, end - begin, cols, ld};
  }
};

template <class T>
In<T> in(const T* data, int64_t rows, int64_t cols) {
  return {data, rows, cols, cols};
}
template <class T>
Out<T> out(T* data, int64_t rows, int64_t cols) {
  return {data, rows, cols, cols};
}
template <class T>
In<T> transposed(In<T> m) {
  m.flipped = !m.flipped;
  return m;
}

// Products of matrices of T into T or, without rounding, into Compute<T>.
template <class T>
class Gemm {
 public:
  using C = Compute<T>;
  explicit Gemm(Pool& pool) : pool_(pool) {}

  void operator()(C alpha, In<T> a, In<T> b, C beta, Out<C> c);
  void operator()(C alpha, In<T> a, In<T> b, C beta, Out<Bf16> c);

 private:
  struct Panel {
    C* data = nullptr;
    int64_t count = 0;
  };
  C* panel(Panel& panel, int64_t count);
  In<C> widen(In<T> m, Panel& panel);

  Pool& pool_;
  Panel a_, b_, c_;
};

// Keeps the BLAS from starting threads of its own; call it before any product.
void use_one_blas_thread();

}  // namespace gpt
