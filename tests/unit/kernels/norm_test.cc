// The sum of squares: equal bytes for every order, grouping and SIMD target;
// values against exact arithmetic.
#include <algorithm>
#include <cmath>

#include "kernels/arithmetic/bins.h"
#include "support.h"

namespace aliquot::kernels {
namespace {

bool same(const NormBins& a, const NormBins& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

template <typename T>
NormBins norm_of(const T* p, int64_t count, Dtype dtype, int64_t base = 0) {
  NormBins bins = {};
  NormArgs args = {&bins, p, count, dtype, 0, base};
  run_cpu(OpCode::kNorm, &args);
  return bins;
}

// One element after the other, by integers only.
template <typename T>
NormBins reference(const std::vector<T>& x) {
  NormBins bins = {};
  bins.first_bad = -1;
  for (size_t i = 0; i < x.size(); ++i) {
    const double value = as_double(x[i]);
    if (std::isfinite(value)) {
      deposit_square(&bins, value);
    } else {
      if (bins.nonfinite++ == 0) bins.first_bad = static_cast<int64_t>(i);
    }
  }
  return bins;
}

// Magnitudes 2^low to 2^high, both signs, some zeros.
template <typename T>
std::vector<T> spread(size_t n, int low, int high, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<T> x(n);
  for (T& value : x) {
    const int exponent =
        low + static_cast<int>(rng() % static_cast<uint64_t>(high - low + 1));
    const double unit = static_cast<double>(rng() >> 11) * 0x1p-53 + 1;
    const double sign = rng() % 2 == 0 ? 1 : -1;
    value =
        convert<T>(rng() % 9 == 0 ? 0.0 : sign * std::ldexp(unit, exponent));
  }
  return x;
}

template <typename T>
void check_range(Dtype dtype, int low, int high) {
  for (size_t n :
       {0u, 1u, 2u, 15u, 16u, 17u, 70u, 1023u, 2047u, 2049u, 5003u}) {
    const std::vector<T> x = spread<T>(n, low, high, n + 1);
    const NormBins expected = reference(x);
    const NormBins got = norm_of(x.data(), static_cast<int64_t>(n), dtype);
    BOOST_TEST(same(got, expected), dtype_name(dtype)
                                        << ", 2^" << low << " to 2^" << high
                                        << ", count " << n);
  }
}

BOOST_AUTO_TEST_CASE(norm_blocks_equal_element_by_element) {
  for_each_target([] {
    for (int low : {0, -4, -20, -28, -60, -90, -149}) {
      check_range<float>(ALQ_F32, low, 1);
      check_range<BF16>(ALQ_BF16, std::max(low, -133), 1);
      check_range<F16>(ALQ_F16, std::max(low, -24), 1);
      check_range<double>(ALQ_F64, low, 1);
    }
    check_range<float>(ALQ_F32, -149, 127);
    check_range<BF16>(ALQ_BF16, -133, 126);
    check_range<F16>(ALQ_F16, -24, 14);
    check_range<double>(ALQ_F64, 900, 1023);
    check_range<double>(ALQ_F64, -1074, -1000);
    check_range<double>(ALQ_F64, -1074, 1023);
    check_range<double>(ALQ_F64, -180, -130);  // around a class border
  });
}

template <typename T>
void check_partitions(Dtype dtype, int low, int high) {
  std::vector<T> x = spread<T>(4001, low, high, 3);
  const NormBins whole = norm_of(x.data(), 4001, dtype);
  std::mt19937_64 rng(17);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(x.begin(), x.end(), rng);
    // Random cuts, parts merged in random order.
    std::vector<size_t> cuts = {0, x.size()};
    for (uint64_t k = rng() % 12; k > 0; --k) cuts.push_back(rng() % x.size());
    std::sort(cuts.begin(), cuts.end());
    std::vector<NormBins> parts;
    for (size_t k = 0; k + 1 < cuts.size(); ++k) {
      parts.push_back(norm_of(x.data() + cuts[k],
                              static_cast<int64_t>(cuts[k + 1] - cuts[k]),
                              dtype));
    }
    std::shuffle(parts.begin(), parts.end(), rng);
    NormBins sum = {};
    for (const NormBins& part : parts) norm_merge(&sum, part);
    BOOST_TEST(same(sum, whole), dtype_name(dtype) << ", round " << round);
  }
}

BOOST_AUTO_TEST_CASE(norm_of_any_order_and_partition_is_the_same) {
  for_each_target([] {
    check_partitions<float>(ALQ_F32, -20, 3);
    check_partitions<float>(ALQ_F32, -149, 127);
    check_partitions<BF16>(ALQ_BF16, -40, 3);
    check_partitions<F16>(ALQ_F16, -24, 14);
    check_partitions<double>(ALQ_F64, -10, 10);
    check_partitions<double>(ALQ_F64, -1074, 1023);
    check_partitions<double>(ALQ_F64, -700, -300);
  });
}

BOOST_AUTO_TEST_CASE(norm_into_used_bins_adds) {
  const std::vector<float> x = spread<float>(3000, -10, 10, 1);
  NormBins bins = {};
  for (int64_t at = 0; at < 3000; at += 1000) {
    NormArgs args = {&bins, x.data() + at, 1000, ALQ_F32, 0, at};
    run_cpu(OpCode::kNorm, &args);
  }
  BOOST_TEST(same(bins, norm_of(x.data(), 3000, ALQ_F32)));
}

BOOST_AUTO_TEST_CASE(norm_merges_dtypes) {
  const std::vector<float> x = spread<float>(100, -10, 10, 1);
  std::vector<double> y(x.begin(), x.end());
  BOOST_TEST(
      same(norm_of(x.data(), 100, ALQ_F32), norm_of(y.data(), 100, ALQ_F64)));
}

BOOST_AUTO_TEST_CASE(norm_counts_nonfinite_and_names_the_first) {
  for_each_target([] {
    std::vector<float> x = spread<float>(5000, -5, 5, 9);
    NormBins none = norm_of(x.data(), 5000, ALQ_F32);
    BOOST_TEST(none.nonfinite == 0);
    BOOST_TEST(none.first_bad == -1);
    x[4321] = std::numeric_limits<float>::quiet_NaN();
    x[2222] = -std::numeric_limits<float>::infinity();
    x[2223] = 0;
    const NormBins bad = norm_of(x.data(), 5000, ALQ_F32, 1000000);
    BOOST_TEST(bad.nonfinite == 2);
    BOOST_TEST(bad.first_bad == 1002222);
    x[4321] = x[2222] = 0;
    const NormBins zeroed = norm_of(x.data(), 5000, ALQ_F32);
    BOOST_TEST(norm_value(bad) == norm_value(zeroed));
    // Merged in either order, the smaller index wins.
    const float inf = std::numeric_limits<float>::infinity();
    const NormBins early = norm_of(&inf, 1, ALQ_F32, 7);
    NormBins a = bad, b = early, c = none;
    norm_merge(&a, early);
    norm_merge(&b, bad);
    BOOST_TEST(same(a, b));
    BOOST_TEST(a.first_bad == 7);
    BOOST_TEST(a.nonfinite == 3);
    norm_merge(&c, early);
    BOOST_TEST(c.first_bad == 7);
  });
}

}  // namespace
}  // namespace aliquot::kernels
