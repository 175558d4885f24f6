// The scalar conversions, against what IEEE 754 says in closed form.
#include <cmath>

#include "support.h"

namespace aliquot::kernels {
namespace {

BOOST_AUTO_TEST_CASE(every_half_survives_the_way_through_f32) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const F16 half = {static_cast<uint16_t>(bits)};
    const bool nan16 = (bits & 0x7fff) > 0x7c00;
    const uint32_t expected16 = nan16 ? bits | 0x200 : bits;
    BOOST_REQUIRE_EQUAL(f32_to_f16(f16_to_f32(half)).bits, expected16);
    const BF16 brain = {static_cast<uint16_t>(bits)};
    const bool nan = (bits & 0x7fff) > 0x7f80;
    const uint32_t expected = nan ? bits | 0x40 : bits;
    BOOST_REQUIRE_EQUAL(f32_to_bf16(bf16_to_f32(brain)).bits, expected);
  }
}

BOOST_AUTO_TEST_CASE(f16_values) {
  BOOST_TEST(f16_to_f32({0x3c00}) == 1.0f);
  BOOST_TEST(f16_to_f32({0x0001}) == 0x1p-24f);
  BOOST_TEST(f16_to_f32({0x83ff}) == -1023 * 0x1p-24f);
  BOOST_TEST(f16_to_f32({0x7bff}) == 65504.0f);
  BOOST_TEST(std::isinf(f16_to_f32({0xfc00})));
  BOOST_TEST(std::isnan(f16_to_f32({0x7c01})));
}

// Nearest of all finite halves, ties to the even pattern, by search.
template <typename Half>
uint16_t nearest(double x, float (*widen)(Half), uint32_t infinity) {
  const double magnitude = std::fabs(x);
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  uint32_t low = 0, high = infinity;  // value(low) <= magnitude
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (static_cast<double>(widen({static_cast<uint16_t>(middle)})) <=
        magnitude) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const double below = static_cast<double>(widen({static_cast<uint16_t>(low)}));
  // Past the largest the next step counts, as if the range went on.
  const double step =
      low + 1 == infinity
          ? below - static_cast<double>(widen({static_cast<uint16_t>(low - 1)}))
          : static_cast<double>(widen({static_cast<uint16_t>(high)})) - below;
  const double rest = magnitude - below, half = step / 2;
  const bool up = rest > half || (rest == half && (low & 1) != 0);
  return static_cast<uint16_t>(sign | (low + (up ? 1 : 0)));
}

BOOST_AUTO_TEST_CASE(narrowing_rounds_to_nearest_even_once) {
  std::mt19937_64 rng(7);
  for (int i = 0; i < 200000; ++i) {
    double x;
    if (i % 3 == 0) {
      x = hard_value(rng);
    } else if (i % 3 == 1) {
      x = bit_cast_to<double>(rng());
      // Into the range of halves, whole mantissa.
      int exponent = 0;
      x = std::frexp(x, &exponent);
      x = std::ldexp(x, static_cast<int>(rng() % 300) - 160);
    } else {  // next to a tie
      const BF16 half = {static_cast<uint16_t>(rng() % 0x7f00)};
      const double value = static_cast<double>(bf16_to_f32(half));
      x = value * (1 + 0x1p-8) +
          value * 0x1p-52 * (static_cast<double>(rng() % 3) - 1);
    }
    if (!std::isfinite(x)) continue;
    BOOST_REQUIRE_EQUAL(convert<F16>(x).bits,
                        nearest<F16>(x, f16_to_f32, 0x7c00));
    BOOST_REQUIRE_EQUAL(convert<BF16>(x).bits,
                        nearest<BF16>(x, bf16_to_f32, 0x7f80));
    const float f = static_cast<float>(x);
    if (!std::isfinite(f)) continue;
    const double y = static_cast<double>(f);
    BOOST_REQUIRE_EQUAL(f32_to_f16(f).bits,
                        nearest<F16>(y, f16_to_f32, 0x7c00));
    BOOST_REQUIRE_EQUAL(f32_to_bf16(f).bits,
                        nearest<BF16>(y, bf16_to_f32, 0x7f80));
  }
}

BOOST_AUTO_TEST_CASE(infinity_and_nan) {
  const double inf = std::numeric_limits<double>::infinity();
  BOOST_TEST(convert<F16>(inf).bits == 0x7c00);
  BOOST_TEST(convert<BF16>(-inf).bits == 0xff80);
  // Signalling becomes quiet; sign and upper payload stay.
  BOOST_TEST(f32_to_bf16(bit_cast_to<float>(0xff810001u)).bits == 0xffc1);
  BOOST_TEST(f32_to_bf16(bit_cast_to<float>(0x7f800001u)).bits == 0x7fc0);
  BOOST_TEST(f32_to_f16(bit_cast_to<float>(0xff802000u)).bits == 0xfe01);
  BOOST_TEST(f32_to_f16(bit_cast_to<float>(0x7fffffffu)).bits == 0x7fff);
}

}  // namespace
}  // namespace aliquot::kernels
