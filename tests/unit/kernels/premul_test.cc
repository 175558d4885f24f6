// Sums of factor * source: against a scalar loop bit for bit, and against a
// wider sum within the error of the additions.
#include <fmt/format.h>

#include <cmath>

#include "kernels/arithmetic/combine.h"
#include "support.h"

namespace aliquot::kernels {
namespace {

constexpr double kFactors[] = {0.1, -3.0, 1.0 / 3, 0.0, 1e-3, 7.25, -0.5, 2, 9};

template <typename S>
struct Sources {
  Sources(int64_t n, int64_t count) {
    for (int64_t k = 0; k < n; ++k) {
      buffers.emplace_back(count, static_cast<size_t>(k % 3) * sizeof(S));
    }
    for (auto& buffer : buffers) pointers.push_back(buffer.data());
  }
  std::vector<Buffer<S>> buffers;
  std::vector<const void*> pointers;
};

template <typename S>
using Accumulate = std::conditional_t<std::is_same_v<S, double>, double, float>;

// alias: dst is this source; -1: a buffer of its own.
template <typename S>
void check_bits(Dtype dtype, int64_t n, int64_t count, int64_t alias) {
  using T = Accumulate<S>;
  Sources<S> srcs(n, count);
  for (int64_t k = 0; k < n; ++k) {
    fill_random(srcs.buffers[static_cast<size_t>(k)],
                static_cast<uint64_t>(9 * k + count));
  }
  Buffer<S> own(count, sizeof(S)), expected(count);
  Buffer<S>* dst = alias < 0 ? &own : &srcs.buffers[static_cast<size_t>(alias)];
  for (int64_t i = 0; i < count; ++i) {
    T sum = 0;
    for (int64_t k = 0; k < n; ++k) {
      T x = convert<T>(srcs.buffers[static_cast<size_t>(k)].get(i));
      volatile T product = x * static_cast<T>(kFactors[k]);
      sum = k == 0 ? T{product} : sum + product;
    }
    expected.set(i, convert<S>(canonical(sum)));
  }
  premul_cpu({dst->data(), srcs.pointers.data(), kFactors, n, count, dtype, 0});
  const int64_t bad = dst->first_difference(expected);
  BOOST_TEST(bad == -1, fmt::format("{} n {} count {} alias {}: element {}",
                                    dtype_name(dtype), n, count, alias, bad));
  BOOST_TEST(dst->guard_intact());
}

BOOST_AUTO_TEST_CASE(premul_is_the_scalar_loop) {
  for_each_target([] {
    for (Dtype dtype : kFloatDtypes) {
      with_float(dtype, [&](auto type) {
        using S = typename decltype(type)::type;
        for (int64_t n : {1, 2, 3, 8, 9}) {
          for (int64_t count : {0, 1, 15, 64, 1003}) {
            check_bits<S>(dtype, n, count, -1);
            check_bits<S>(dtype, n, count, n - 1);
          }
        }
      });
    }
  });
}

// |error| <= (n + 1) roundings of the sum of magnitudes, and one to store.
template <typename S>
void check_oracle(Dtype dtype, double eps, double store_eps) {
  constexpr int64_t kN = 5, kCount = 2000;
  Sources<S> srcs(kN, kCount);
  Buffer<S> dst(kCount);
  std::mt19937_64 rng(5);
  std::uniform_real_distribution<double> uniform(-10, 10);
  for (auto& buffer : srcs.buffers) {
    for (int64_t i = 0; i < kCount; ++i) {
      buffer.set(i, convert<S>(static_cast<Accumulate<S>>(uniform(rng))));
    }
  }
  premul_cpu(
      {dst.data(), srcs.pointers.data(), kFactors, kN, kCount, dtype, 0});
  double worst = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    long double sum = 0;
    double magnitude = 0;
    for (size_t k = 0; k < kN; ++k) {
      double x =
          static_cast<double>(convert<Accumulate<S>>(srcs.buffers[k].get(i)));
      sum += static_cast<long double>(x) * kFactors[k];
      magnitude += std::abs(x * kFactors[k]);
    }
    double got = static_cast<double>(convert<Accumulate<S>>(dst.get(i)));
    double allowed = eps * (kN + 2) * magnitude + store_eps * std::abs(got);
    auto error = static_cast<double>(std::abs(got - sum));
    worst = std::max(worst, error / allowed);
  }
  BOOST_TEST(worst <= 1.0, dtype_name(dtype) << ": " << worst);
  BOOST_TEST(worst > 0.0);
}

BOOST_AUTO_TEST_CASE(premul_is_close_to_a_wider_sum) {
  for_each_target([] {
    check_oracle<float>(ALQ_F32, 0x1p-24, 0);
    check_oracle<F16>(ALQ_F16, 0x1p-24, 0x1p-11);
    check_oracle<BF16>(ALQ_BF16, 0x1p-24, 0x1p-8);
    check_oracle<double>(ALQ_F64, 0x1p-53, 0);
  });
}

BOOST_AUTO_TEST_CASE(premul_refuses_integers) {
  int32_t one = 1, out = 5;
  const void* srcs[1] = {&one};
  premul_cpu({&out, srcs, kFactors, 1, 1, ALQ_I32, 0});
  BOOST_TEST(out == 5);
}

}  // namespace
}  // namespace aliquot::kernels
