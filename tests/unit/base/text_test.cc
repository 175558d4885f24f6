// Text that does not fit is cut between characters.
#include "base/text.h"

#include <boost/test/unit_test.hpp>
#include <cstring>

namespace aliquot {
namespace {

BOOST_AUTO_TEST_CASE(text_is_cut_between_characters) {
  const std::string_view text = "a\u00e9\u6f22";  // 1, 2 and 3 bytes
  const size_t begin[] = {0, 1, 1, 3, 3, 3, 6, 6};
  const size_t end[] = {0, 0, 0, 3, 3, 5, 6, 6};
  for (size_t bytes = 0; bytes < 8; ++bytes) {
    BOOST_TEST(fitting(text, bytes) == text.substr(0, begin[bytes]));
    BOOST_TEST(fitting_end(text, bytes) == text.substr(6 - end[bytes]));
  }
  // Bytes that are no text are cut as well.
  BOOST_TEST(fitting("\x80\x80\x80", 2).empty());
  BOOST_TEST(fitting_end("\x80\x80\x80", 2).empty());
}

BOOST_AUTO_TEST_CASE(a_copy_always_ends) {
  char to[4];
  std::memset(to, 'x', sizeof to);
  copy_text(to, "ab\u00e9");
  BOOST_TEST(std::string_view(to) == "ab");
  copy_text(to, "abcdef");
  BOOST_TEST(std::string_view(to) == "abc");
  copy_text(to, "");
  BOOST_TEST(std::string_view(to).empty());
}

}  // namespace
}  // namespace aliquot
