// The image that the library carries: there with nvcc, empty without.
#include "kernels/cuda/image.h"

#include <boost/test/unit_test.hpp>
#include <cstring>

namespace aliquot::kernels {
namespace {

BOOST_AUTO_TEST_CASE(image_is_a_fat_binary_or_nothing) {
  const CudaImage image = cuda_image();
  if (ALQ_HAS_NVCC == 0) {
    BOOST_TEST(image.bytes == 0u);
    BOOST_TEST(image.data == nullptr);
    return;
  }
  BOOST_REQUIRE(image.bytes > 1000u);
  uint32_t magic;
  std::memcpy(&magic, image.data, sizeof(magic));
  BOOST_TEST(magic == 0xba55ed50u);
  BOOST_TEST(reinterpret_cast<uintptr_t>(image.data) % 64 == 0u);
  // 16 bytes of header, then as many as its length says.
  uint64_t length;
  std::memcpy(&length, static_cast<const char*>(image.data) + 8, 8);
  BOOST_TEST(length + 16 == image.bytes);
}

}  // namespace
}  // namespace aliquot::kernels
