// The sum of squares: the CPU's bytes for every dtype, spread of magnitudes,
// alignment, grid and order, also when blocks run at once.
#include <cmath>

#include "launch.h"

namespace aliquot::kernels {
namespace {

bool same(const NormBins& a, const NormBins& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

// Magnitudes 2^low to 2^high, both signs, some zeros.
template <typename T>
void fill_spread(Buffer<T>& x, int low, int high, uint64_t seed) {
  std::mt19937_64 rng(seed);
  for (int64_t i = 0; i < x.count(); ++i) {
    const int exponent =
        low + static_cast<int>(rng() % static_cast<uint64_t>(high - low + 1));
    const double unit = static_cast<double>(rng() >> 11) * 0x1p-53 + 1;
    const double value = std::ldexp(rng() % 2 == 0 ? unit : -unit, exponent);
    x.set(i, convert<T>(rng() % 9 == 0 ? 0.0 : value));
  }
}

template <typename T>
void check(Dtype dtype, Buffer<T>& x, const NormBins& before) {
  NormBins expected = before;
  const NormArgs cpu = {&expected, x.data(), x.count(), dtype, 0, 77};
  run_cpu(OpCode::kNorm, &cpu);
  for_each_grid([&](Grid grid) {
    NormBins got = before;
    const NormArgs args = {&got, x.data(), x.count(), dtype, 0, 77};
    run_cuda(OpCode::kNorm, args, grid);
    BOOST_TEST(same(got, expected));
  });
}

struct Spread {
  int low, high;
};

template <typename T>
void check_spreads(Dtype dtype, const std::vector<Spread>& spreads) {
  for (const Spread s : spreads) {
    for (size_t skew : {size_t{0}, sizeof(T), size_t{1}}) {
      for (int64_t count : cuda_counts()) {
        Buffer<T> x(count, skew);
        fill_spread(x, s.low, s.high, static_cast<uint64_t>(count) + 9);
        BOOST_TEST_CONTEXT(dtype_name(dtype)
                           << " of 2^" << s.low << " to 2^" << s.high
                           << ", count " << count << ", skew " << skew) {
          check(dtype, x, NormBins{});
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(norm_of_any_spread_has_the_bytes_of_the_cpu) {
  check_spreads<float>(
      ALQ_F32,
      {{0, 0}, {-12, 3}, {-45, 0}, {-149, 127}, {-149, -120}, {100, 127}});
  check_spreads<F16>(ALQ_F16, {{0, 0}, {-24, 15}, {-24, -14}, {8, 15}});
  check_spreads<BF16>(ALQ_BF16, {{0, 0}, {-12, 3}, {-133, 127}, {-30, 0}});
  check_spreads<double>(ALQ_F64, {{0, 0},
                                  {-12, 3},
                                  {-60, 0},
                                  {-300, 300},
                                  {-1074, 1023},
                                  {-1074, -1000},
                                  {130, 138},
                                  {990, 1023}});
}

// One large element or small one among others, where a window must move.
BOOST_AUTO_TEST_CASE(norm_of_outliers) {
  for (int high : {10, 25, 60, 120}) {
    Buffer<float> x(2000);
    fill_spread(x, -3, 0, 4);
    for (int64_t i = 5; i < x.count(); i += 97) {
      x.set(i, std::ldexp(1.75f, i % 2 == 0 ? high : -high));
    }
    check(ALQ_F32, x, NormBins{});
    Buffer<BF16> halves(2000);
    for (int64_t i = 0; i < x.count(); ++i) {
      halves.set(i, convert<BF16>(x.get(i)));
    }
    check(ALQ_BF16, halves, NormBins{});
  }
}

BOOST_AUTO_TEST_CASE(norm_counts_the_non_finite) {
  for (Dtype dtype : kFloatDtypes) {
    with_float(dtype, [&](auto t) {
      using T = typename decltype(t)::type;
      for (int64_t count : {1, 9, 64, 1025}) {
        Buffer<T> x(count, sizeof(T));
        fill_random(x, static_cast<uint64_t>(count));
        BOOST_TEST_CONTEXT(dtype_name(dtype) << ", count " << count) {
          check(dtype, x, NormBins{});
          // Into bins that have some already, before and behind.
          NormBins before = {};
          before.nonfinite = 2;
          before.first_bad = 3;
          check(dtype, x, before);
          before.first_bad = 5000;
          check(dtype, x, before);
        }
      }
      // Only zeros, and nothing: the empty bins.
      Buffer<T> zeros(100);
      for (int64_t i = 0; i < 100; ++i) zeros.set(i, convert<T>(-0.0));
      check(dtype, zeros, NormBins{});
      Buffer<T> nothing(0);
      check(dtype, nothing, NormBins{});
    });
  }
}

// Bins of a lower, the same and a higher class.
BOOST_AUTO_TEST_CASE(norm_adds_to_bins_of_any_class) {
  for (int exponent : {-1000, -400, -200, 0, 100, 200, 500, 1000}) {
    NormBins before = {};
    const double x[] = {std::ldexp(1.5, exponent), std::ldexp(1, exponent / 2)};
    const NormArgs args = {&before, x, 2, ALQ_F64, 0, 0};
    run_cpu(OpCode::kNorm, &args);
    for (Dtype dtype : kFloatDtypes) {
      with_float(dtype, [&](auto t) {
        Buffer<typename decltype(t)::type> y(300);
        fill_spread(y, -14, 2, 8);
        BOOST_TEST_CONTEXT(dtype_name(dtype) << " to 2^" << exponent) {
          check(dtype, y, before);
        }
      });
    }
  }
}

BOOST_AUTO_TEST_CASE(norm_of_blocks_at_once) {
  cuda_host_workers(4);
  for (int run = 0; run < 20; ++run) {
    for (Dtype dtype : kFloatDtypes) {
      with_float(dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        Buffer<T> x(3000);
        fill_spread(x, dtype == ALQ_F64 ? -700 : -24, 15,
                    static_cast<uint64_t>(run));
        if (run % 2 == 1) {
          x.set(100 + run, convert<T>(std::numeric_limits<double>::infinity()));
        }
        NormBins expected = {}, got = {};
        const NormArgs cpu = {&expected, x.data(), x.count(), dtype, 0, 0};
        run_cpu(OpCode::kNorm, &cpu);
        NormArgs args = cpu;
        args.bins = &got;
        cuda_host_seed(static_cast<uint64_t>(run) + 1);
        run_cuda(OpCode::kNorm, args, {16, 32});
        BOOST_TEST(same(got, expected));
      });
    }
  }
  cuda_host_seed(0);
  cuda_host_workers(1);
}

}  // namespace
}  // namespace aliquot::kernels
