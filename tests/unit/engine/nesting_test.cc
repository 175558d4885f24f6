#include "engine/nesting.h"

#include <boost/test/unit_test.hpp>
#include <vector>

namespace aliquot::engine {
namespace {

// Runs a nesting over contributions named by their index and returns the sum as
// text with parentheses.
std::string spell(const std::string& text, int64_t count) {
  Result<Nesting> nesting = Nesting::parse(text);
  BOOST_REQUIRE(nesting.ok());
  std::vector<std::string> level(static_cast<size_t>(nesting->levels()));
  auto put = [](std::string* to, const std::string& what, bool first) {
    *to = first ? what : *to + "+" + what;
  };
  for (int64_t i = 0; i < count; ++i) {
    put(&level.back(), std::to_string(i), nesting->first_at_innermost(i));
    nesting->after(i, i + 1 == count, [&](int32_t l, bool first) {
      size_t at = static_cast<size_t>(l);
      put(&level[at - 1], "(" + level[at] + ")", first);
    });
  }
  return level[0];
}

BOOST_AUTO_TEST_CASE(flat_is_linear_of_any_length) {
  BOOST_TEST(spell("", 4) == "0+1+2+3");
  BOOST_TEST(spell("4", 4) == "0+1+2+3");
}

BOOST_AUTO_TEST_CASE(levels_sum_inner_groups_first) {
  BOOST_TEST(spell("2x3", 6) == "(0+1+2)+(3+4+5)");
  BOOST_TEST(spell("2x2x2", 8) == "((0+1)+(2+3))+((4+5)+(6+7))");
  BOOST_TEST(spell("1x2", 2) == "(0+1)");
}

BOOST_AUTO_TEST_CASE(a_short_sum_closes_its_open_groups) {
  BOOST_TEST(spell("2x3", 4) == "(0+1+2)+(3)");
}

BOOST_AUTO_TEST_CASE(bad_nestings_are_refused) {
  for (const char* bad : {"x", "2x", "x2", "0", "2x0", "-1", "2 x 2", "a",
                          "1000001", "2xx2", "1000000x1000000"}) {
    BOOST_TEST(!Nesting::parse(bad).ok(), bad);
  }
}

}  // namespace
}  // namespace aliquot::engine
