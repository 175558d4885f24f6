// Fill and copy: every width, alignment, count and grid, guards intact.
#include "launch.h"

namespace aliquot::kernels {
namespace {

BOOST_AUTO_TEST_CASE(fill_repeats_the_pattern) {
  const uint64_t bits = 0x0123456789abcdefu;
  for (int64_t width : {1, 2, 4, 8}) {
    for (size_t skew : {0u, 1u, 2u, 3u, 4u, 8u, 13u}) {
      for (int64_t count : cuda_counts()) {
        Buffer<uint8_t> expected(count * width, skew);
        const FillArgs cpu = {expected.data(), count, bits, width};
        run_cpu(OpCode::kFill, &cpu);
        for_each_grid([&](Grid grid) {
          Buffer<uint8_t> got(count * width, skew);
          run_cuda(OpCode::kFill, FillArgs{got.data(), count, bits, width},
                   grid);
          BOOST_TEST_CONTEXT("width " << width << ", skew " << skew
                                      << ", count " << count) {
            BOOST_TEST(got.first_difference(expected) == -1);
            BOOST_TEST(got.guard_intact());
          }
        });
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(copy_at_any_two_addresses) {
  for (size_t to : {0u, 1u, 2u, 4u, 7u, 8u, 12u}) {
    for (size_t from : {0u, 1u, 4u, 6u, 8u, 15u}) {
      for (int64_t bytes : {0, 1, 2, 15, 16, 17, 31, 33, 64, 255, 1027}) {
        Buffer<uint8_t> src(bytes, from);
        fill_random(src, static_cast<uint64_t>(bytes) + to * 16 + from);
        for_each_grid([&](Grid grid) {
          Buffer<uint8_t> got(bytes, to);
          run_cuda(OpCode::kCopy, CopyArgs{got.data(), src.data(), bytes},
                   grid);
          BOOST_TEST_CONTEXT("skews " << from << ' ' << to << ", bytes "
                                      << bytes) {
            BOOST_TEST(got.first_difference(src) == -1);
            BOOST_TEST(got.guard_intact());
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace aliquot::kernels
