// Values of the norm: exact sums, extreme magnitudes, rounding.
#include <cmath>

#include "support.h"

namespace aliquot::kernels {
namespace {

NormBins norm_of(const std::vector<double>& x) {
  NormBins bins = {};
  NormArgs args = {&bins,   x.data(), static_cast<int64_t>(x.size()),
                   ALQ_F64, 0,        0};
  run_cpu(OpCode::kNorm, &args);
  return bins;
}

double relative(double got, double expected) {
  return std::fabs(got - expected) / expected;
}

BOOST_AUTO_TEST_CASE(norm_of_nothing_is_zero) {
  const NormBins empty = {};
  BOOST_TEST(norm_value(empty) == 0);
  BOOST_TEST(norm_root(empty) == 0);
  BOOST_TEST(norm_value(norm_of({0.0, -0.0})) == 0);
}

BOOST_AUTO_TEST_CASE(norm_of_small_integers_is_exact) {
  std::vector<double> x;
  double sum = 0;
  for (int i = 1; i <= 3000; ++i) {
    x.push_back(i % 2 == 0 ? i : -i);
    sum += static_cast<double>(i) * i;
  }
  BOOST_TEST(norm_value(norm_of(x)) == sum);
  BOOST_TEST(norm_value(norm_of({3.0, -4.0})) == 25);
  BOOST_TEST(norm_root(norm_of({3.0, -4.0})) == 5);
}

// f32 against long double, whose 64 bits hold these sums to 1e-18.
BOOST_AUTO_TEST_CASE(norm_of_f32_is_correct_to_an_ulp) {
  for_each_target([] {
    std::mt19937_64 rng(4);
    std::normal_distribution<float> normal;
    std::vector<float> x(100003);
    long double sum = 0;
    for (float& value : x) {
      value = normal(rng) * 1e-3f;
      sum += static_cast<long double>(value) * static_cast<long double>(value);
    }
    NormBins bins = {};
    NormArgs args = {&bins, x.data(), 100003, ALQ_F32, 0, 0};
    run_cpu(OpCode::kNorm, &args);
    BOOST_TEST(relative(norm_value(bins), static_cast<double>(sum)) < 2.3e-16);
    BOOST_TEST(relative(norm_root(bins), static_cast<double>(sqrtl(sum))) <
               2.3e-16);
  });
}

// One big element must not drown a million small ones.
BOOST_AUTO_TEST_CASE(norm_keeps_what_is_small) {
  std::vector<float> x(1 << 20, 1e-6f);
  x[12345] = 1.0f;
  NormBins bins = {};
  NormArgs args = {&bins, x.data(), 1 << 20, ALQ_F32, 0, 0};
  run_cpu(OpCode::kNorm, &args);
  const double small = static_cast<double>(1e-6f);
  const double expected = 1.0 + ((1 << 20) - 1) * (small * small);
  BOOST_TEST(relative(norm_value(bins), expected) < 2.3e-16);
}

BOOST_AUTO_TEST_CASE(norm_of_extreme_magnitudes) {
  for_each_target([] {
    BOOST_TEST(std::isinf(norm_value(norm_of({1e200, 1e200}))));
    BOOST_TEST(relative(norm_root(norm_of({3e200, 4e200})), 5e200) < 2.3e-16);
    BOOST_TEST(norm_value(norm_of({1e-200})) == 0);
    BOOST_TEST(relative(norm_root(norm_of({3e-200, 4e-200})), 5e-200) <
               2.3e-16);
    const double big = std::numeric_limits<double>::max();
    BOOST_TEST(norm_root(norm_of({big})) == big);
    BOOST_TEST(norm_root(norm_of({0x1p-1074})) == 0x1p-1074);
    // A sum in the denormal range: rounded once.
    BOOST_TEST(norm_value(norm_of({0x1p-537})) == 0x1p-1074);
    BOOST_TEST(norm_value(norm_of({0x1.8p-530, 0x1p-537})) ==
               0x1.2p-1059 + 0x1p-1074);
    BOOST_TEST(norm_value(norm_of({1e200, 1e-200, 1.0, 1e150})) >= 1e300);
  });
}

// Rounding to even: 2^106 + 2^53 is halfway, one more is above.
BOOST_AUTO_TEST_CASE(norm_value_rounds_to_nearest_even) {
  std::vector<double> x = {0x1p53, 0x1p26, 0x1p26};  // 2^106 + 2^53
  BOOST_TEST(norm_value(norm_of(x)) == 0x1p106);
  x.push_back(1);
  BOOST_TEST(norm_value(norm_of(x)) == 0x1.0000000000001p106);
}

}  // namespace
}  // namespace aliquot::kernels
