// Casts, scaled and not, in place and not: the CPU's bits for every pair of
// dtypes, any alignment and any grid.
#include "launch.h"

namespace aliquot::kernels {
namespace {

struct Skews {
  size_t to, from;  // bytes
};

template <typename To, typename From>
std::vector<Skews> skews() {
  const size_t to = sizeof(To), from = sizeof(From);
  // Alike, alike after a lead, never alike, off the elements' own alignment.
  return {{0, 0}, {to, from}, {0, from}, {3 * to, 3 * from}, {1, 3}};
}

template <typename To, typename From>
void check_cast(Dtype to, Dtype from, int64_t count, Skews skew, double scale) {
  Buffer<From> src(count, skew.from);
  Buffer<To> expected(count, skew.to), got(count, skew.to);
  fill_random(src, static_cast<uint64_t>(count) + 17);
  const CastArgs cpu = {expected.data(), src.data(), count, to, from, scale};
  run_cpu(OpCode::kCast, &cpu);
  for_each_grid([&](Grid grid) {
    fill_random(got, 5);
    const CastArgs args = {got.data(), src.data(), count, to, from, scale};
    run_cuda(OpCode::kCast, args, grid);
    BOOST_TEST(got.first_difference(expected) == -1);
    BOOST_TEST(got.guard_intact());
  });
}

BOOST_AUTO_TEST_CASE(cast_has_the_bits_of_the_cpu) {
  for (Dtype to : kFloatDtypes) {
    for (Dtype from : kFloatDtypes) {
      with_float(to, [&](auto t) {
        with_float(from, [&](auto f) {
          using To = typename decltype(t)::type;
          using From = typename decltype(f)::type;
          for (const Skews skew : skews<To, From>()) {
            for (int64_t count : cuda_counts()) {
              for (double scale : {1.0, 1.0 / 3}) {
                BOOST_TEST_CONTEXT(dtype_name(from)
                                   << " to " << dtype_name(to) << ", count "
                                   << count << ", skews " << skew.from << ' '
                                   << skew.to << ", scale " << scale) {
                  check_cast<To, From>(to, from, count, skew, scale);
                }
              }
            }
          }
        });
      });
    }
  }
}

template <typename To, typename From>
void check_within(Dtype to, Dtype from, int64_t count, double scale) {
  Buffer<From> expected(count), start(count);
  fill_random(start, static_cast<uint64_t>(count) + 3);
  expected.copy_from(start);
  const CastArgs cpu = {
      expected.data(), expected.data(), count, to, from, scale};
  run_cpu(OpCode::kCast, &cpu);
  for_each_grid([&](Grid grid) {
    Buffer<From> both(count);
    both.copy_from(start);
    const CastArgs args = {both.data(), both.data(), count, to, from, scale};
    run_cuda(OpCode::kCast, args, grid);
    BOOST_TEST(std::memcmp(both.data(), expected.data(),
                           static_cast<size_t>(count) * sizeof(To)) == 0);
    BOOST_TEST(both.guard_intact());
  });
}

BOOST_AUTO_TEST_CASE(cast_in_place_keeps_what_is_still_to_be_read) {
  for (Dtype to : kFloatDtypes) {
    for (Dtype from : kFloatDtypes) {
      if (dtype_size(to) > dtype_size(from)) continue;
      with_float(to, [&](auto t) {
        with_float(from, [&](auto f) {
          using To = typename decltype(t)::type;
          using From = typename decltype(f)::type;
          for (int64_t count : cuda_counts()) {
            for (double scale : {1.0, 0.3}) {
              BOOST_TEST_CONTEXT(dtype_name(from) << " to " << dtype_name(to)
                                                  << ", count " << count) {
                check_within<To, From>(to, from, count, scale);
              }
            }
          }
        });
      });
    }
  }
}

// Every f16 and bf16, and every pattern of 16 upper bits of f32 and f64.
template <typename From>
void check_all_patterns(Dtype from) {
  constexpr int64_t kCount = 65536;
  Buffer<From> src(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    const uint64_t upper = static_cast<uint64_t>(i) << (8 * sizeof(From) - 16);
    const uint64_t bits = upper | (sizeof(From) > 2 ? 0x1001u : 0u);
    From x;
    std::memcpy(&x, &bits, sizeof(x));
    src.set(i, x);
  }
  for (Dtype to : kFloatDtypes) {
    with_float(to, [&](auto t) {
      using To = typename decltype(t)::type;
      Buffer<To> expected(kCount), got(kCount);
      CastArgs args = {expected.data(), src.data(), kCount, to, from, 1.0};
      run_cpu(OpCode::kCast, &args);
      args.dst = got.data();
      run_cuda(OpCode::kCast, args);
      BOOST_TEST_CONTEXT(dtype_name(from) << " to " << dtype_name(to)) {
        BOOST_TEST(got.first_difference(expected) == -1);
      }
    });
  }
}

BOOST_AUTO_TEST_CASE(cast_of_every_upper_half) {
  check_all_patterns<F16>(ALQ_F16);
  check_all_patterns<BF16>(ALQ_BF16);
  check_all_patterns<float>(ALQ_F32);
  check_all_patterns<double>(ALQ_F64);
}

}  // namespace
}  // namespace aliquot::kernels
