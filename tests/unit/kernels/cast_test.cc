// Every pair of float dtypes against the scalar conversions, bit for bit.
#include "kernels/arithmetic/combine.h"
#include "support.h"

namespace aliquot::kernels {
namespace {

template <typename To, typename From>
To cast_reference(From x, double scale) {
  constexpr bool kF64 =
      std::is_same_v<To, double> || std::is_same_v<From, double>;
  using T = std::conditional_t<kF64, double, float>;
  if (scale == 1.0) {
    if constexpr (std::is_same_v<To, From>)
      return x;
    else
      return convert<To>(convert<T>(x));
  }
  return convert<To>(canonical(convert<T>(x) * static_cast<T>(scale)));
}

template <typename To, typename From>
void check_cast(Dtype to, Dtype from, int64_t count, double scale) {
  const size_t skew = static_cast<size_t>(count % 3);
  Buffer<From> src(count, skew * sizeof(From));
  Buffer<To> dst(count, sizeof(To)), expected(count);
  fill_random(src, static_cast<uint64_t>(count) + 1);
  for (int64_t i = 0; i < count; ++i) {
    expected.set(i, cast_reference<To>(src.get(i), scale));
  }
  CastArgs args = {dst.data(), src.data(), count, to, from, scale};
  run_cpu(OpCode::kCast, &args);
  const int64_t bad = dst.first_difference(expected);
  BOOST_TEST(bad == -1, dtype_name(from)
                            << " to " << dtype_name(to) << ", count " << count
                            << ", scale " << scale << ", element " << bad);
  BOOST_TEST(dst.guard_intact());
}

BOOST_AUTO_TEST_CASE(cast_all_pairs) {
  for_each_target([] {
    for (Dtype to : kFloatDtypes) {
      for (Dtype from : kFloatDtypes) {
        with_float(to, [&](auto t) {
          with_float(from, [&](auto f) {
            for (int64_t count : test_counts()) {
              for (double scale : {1.0, 0.1}) {
                check_cast<typename decltype(t)::type,
                           typename decltype(f)::type>(to, from, count, scale);
              }
            }
          });
        });
      }
    }
  });
}

// All 65536 patterns widen and every one narrows back to itself (NaN quiet).
BOOST_AUTO_TEST_CASE(cast_every_half_pattern) {
  for_each_target([] {
    for (Dtype half : {ALQ_F16, ALQ_BF16}) {
      Buffer<uint16_t> src(0x10000), back(0x10000);
      Buffer<float> wide(0x10000);
      for (int64_t i = 0; i < 0x10000; ++i) {
        src.set(i, static_cast<uint16_t>(i));
      }
      CastArgs widen = {wide.data(), src.data(), 0x10000, ALQ_F32, half, 1.0};
      run_cpu(OpCode::kCast, &widen);
      CastArgs narrow = {back.data(), wide.data(), 0x10000, half, ALQ_F32, 1.0};
      run_cpu(OpCode::kCast, &narrow);
      const int64_t infinity = half == ALQ_F16 ? 0x7c00 : 0x7f80;
      const int64_t quiet = half == ALQ_F16 ? 0x200 : 0x40;
      for (int64_t i = 0; i < 0x10000; ++i) {
        const bool nan = (i & 0x7fff) > infinity;
        BOOST_REQUIRE_EQUAL(back.get(i), nan ? i | quiet : i);
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(cast_narrows_in_place) {
  for_each_target([] {
    Buffer<double> data(1001), copy(1001);
    fill_random(data, 5);
    copy.copy_from(data);
    CastArgs args = {data.data(), data.data(), 1001, ALQ_BF16, ALQ_F64, 1.0};
    run_cpu(OpCode::kCast, &args);
    for (int64_t i = 0; i < 1001; ++i) {
      BF16 got;
      std::memcpy(&got, reinterpret_cast<char*>(data.data()) + 2 * i, 2);
      BOOST_REQUIRE_EQUAL(got.bits, convert<BF16>(copy.get(i)).bits);
    }
  });
}

BOOST_AUTO_TEST_CASE(cast_refuses_other_dtypes) {
  Buffer<int32_t> src(4), dst(4), before(4);
  fill_random(src, 1);
  fill_random(dst, 2);
  before.copy_from(dst);
  CastArgs args = {dst.data(), src.data(), 4, ALQ_F32, ALQ_I32, 1.0};
  BOOST_TEST(!cast_supported(ALQ_F32, ALQ_I32));
  run_cpu(OpCode::kCast, &args);
  BOOST_TEST(dst.first_difference(before) == -1);
}

}  // namespace
}  // namespace aliquot::kernels
