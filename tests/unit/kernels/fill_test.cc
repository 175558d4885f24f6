#include "kernels/cpu/cpu.h"
#include "support.h"

namespace aliquot::kernels {
namespace {

void check_fill(int64_t width, uint64_t bits, int64_t count, size_t skew) {
  Buffer<uint8_t> dst(count * width, skew);
  FillArgs args = {dst.data(), count, bits, width};
  run_cpu(OpCode::kFill, &args);
  BOOST_TEST(dst.guard_intact());
  for (int64_t i = 0; i < count * width; ++i) {
    const uint8_t expected = static_cast<uint8_t>(bits >> (8 * (i % width)));
    BOOST_REQUIRE_EQUAL(dst.get(i), expected);
  }
}

BOOST_AUTO_TEST_CASE(fill_every_width) {
  for_each_target([] {
    for (int64_t width : {1, 2, 4, 8}) {
      for (int64_t count : test_counts()) {
        const size_t skew = static_cast<size_t>(count % 5);
        check_fill(width, 0x8877665544332211u, count, skew);
        check_fill(width, 0, count, skew);
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(copy_bytes) {
  for (int64_t bytes : test_counts()) {
    Buffer<uint8_t> src(bytes, 3), dst(bytes, 1);
    fill_random(src, 11);
    CopyArgs args = {dst.data(), src.data(), bytes};
    run_cpu(OpCode::kCopy, &args);
    BOOST_TEST(dst.first_difference(src) == -1);
    BOOST_TEST(dst.guard_intact());
  }
}

BOOST_AUTO_TEST_CASE(copies_by_vectors) {
  for_each_target([] {
    for (void (*copy)(const CopyArgs&) : {copy_cold_cpu, copy_even_cpu}) {
      for (int64_t bytes : test_counts()) {
        for (size_t skew : {size_t{0}, size_t{1}, size_t{63}}) {
          Buffer<uint8_t> src(bytes, 3), dst(bytes, skew);
          fill_random(src, 12);
          copy({dst.data(), src.data(), bytes});
          flush_cold_cpu();
          BOOST_TEST(dst.first_difference(src) == -1);
          BOOST_TEST(dst.guard_intact());
        }
      }
    }
  });
}

}  // namespace
}  // namespace aliquot::kernels
