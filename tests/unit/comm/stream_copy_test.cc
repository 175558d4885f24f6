// Copies of windows: every byte, at every alignment, and no byte beside.
#include "comm/mem/stream_copy.h"

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <vector>

namespace aliquot::mem {
namespace {

using Copy = void (*)(void*, const void*, int64_t);

void check(Copy copy, size_t to_skew, size_t from_skew, size_t bytes) {
  std::vector<unsigned char> from(bytes + 192), to(bytes + 320, 0xa5);
  for (size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<unsigned char>(i * 37 + i / 251);
  }
  std::vector<unsigned char> want = to;
  std::memcpy(want.data() + 128 + to_skew, from.data() + from_skew, bytes);
  copy(to.data() + 128 + to_skew, from.data() + from_skew,
       static_cast<int64_t>(bytes));
  BOOST_TEST((to == want),
             bytes << " bytes from " << from_skew << " to " << to_skew);
}

BOOST_AUTO_TEST_CASE(window_copies_copy_all_and_nothing_else) {
  for (Copy copy : {stream_copy, block_copy}) {
    for (size_t to : {0, 1, 16, 32, 63}) {
      for (size_t from : {0, 5, 16, 33, 64}) {
        for (size_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 1000, 70'001}) {
          check(copy, to, from, bytes);
        }
      }
    }
  }
}

}  // namespace
}  // namespace aliquot::mem
