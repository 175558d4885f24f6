// Products against a naive sum, and the property that training rests on: the
// bits depend on the values alone, not on where the matrices lie.
#include "gemm.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace gpt {
namespace {

struct Case {
  int64_t m, n, k;
  bool flip_a, flip_b;
};

const Case kCases[] = {
    {1, 1, 1, false, false},      {5, 7, 3, false, true},
    {64, 128, 32, false, true},   {70, 33, 131, true, false},
    {128, 344, 256, true, false}, {256, 96, 344, false, false},
    {1, 64, 32, false, true}};

template <class T>
std::vector<T> random_matrix(int64_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<T> values(static_cast<size_t>(count));
  for (T& v : values) v = down<T>(static_cast<Compute<T>>(normal(random)));
  return values;
}

// A copy that starts `offset` elements after a multiple of 64 bytes.
template <class T>
T* place(Pool& pool, const std::vector<T>& values, int64_t offset) {
  T* to = pool.take<T>(static_cast<int64_t>(values.size()) + offset) + offset;
  std::memcpy(to, values.data(), values.size() * sizeof(T));
  return to;
}

template <class T>
std::vector<T> product(const Case& c, Compute<T> beta, int64_t offset) {
  Pool pool;
  Gemm<T> gemm(pool);
  const T* a = place(pool, random_matrix<T>(c.m * c.k, 1), offset);
  const T* b = place(pool, random_matrix<T>(c.n * c.k, 2), offset);
  T* to = place(pool, random_matrix<T>(c.m * c.n, 3), offset);
  const In<T> left = c.flip_a ? transposed(in(a, c.k, c.m)) : in(a, c.m, c.k);
  const In<T> right = c.flip_b ? transposed(in(b, c.n, c.k)) : in(b, c.k, c.n);
  gemm(Compute<T>{1}, left, right, beta, out(to, c.m, c.n));
  return {to, to + c.m * c.n};
}

template <class T>
double worst_error(const Case& c) {
  const auto a = random_matrix<T>(c.m * c.k, 1);
  const auto b = random_matrix<T>(c.n * c.k, 2);
  const auto old = random_matrix<T>(c.m * c.n, 3);
  const auto got = product<T>(c, 1, 0);
  double worst = 0;
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = up(old[static_cast<size_t>(i * c.n + j)]);
      for (int64_t l = 0; l < c.k; ++l) {
        const auto x =
            static_cast<size_t>(c.flip_a ? l * c.m + i : i * c.k + l);
        const auto y =
            static_cast<size_t>(c.flip_b ? j * c.k + l : l * c.n + j);
        sum += static_cast<double>(up(a[x])) * static_cast<double>(up(b[y]));
      }
      const double value = up(got[static_cast<size_t>(i * c.n + j)]);
      worst = std::max(worst, std::abs(value - sum) / (1 + std::abs(sum)));
    }
  }
  return worst;
}

BOOST_AUTO_TEST_CASE(products_are_right) {
  use_one_blas_thread();
  for (const Case& c : kCases) {
    BOOST_TEST(worst_error<double>(c) < 1e-13);
    BOOST_TEST(worst_error<float>(c) < 1e-4);
    BOOST_TEST(worst_error<Bf16>(c) < 5e-3);
  }
}

template <class T>
void check_placement() {
  for (const Case& c : kCases) {
    for (const int beta : {0, 1}) {
      const auto b = static_cast<Compute<T>>(beta);
      const auto aligned = product<T>(c, b, 0);
      for (int64_t offset = 1; offset < 16; offset += 2) {
        const auto moved = product<T>(c, b, offset);
        BOOST_TEST(std::memcmp(aligned.data(), moved.data(),
                               aligned.size() * sizeof(T)) == 0);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(bits_do_not_depend_on_placement) {
  use_one_blas_thread();
  check_placement<double>();
  check_placement<float>();
  check_placement<Bf16>();
}

}  // namespace
}  // namespace gpt
