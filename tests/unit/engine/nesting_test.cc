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

BOOST_AUTO_TEST_CASE(groups_may_have_different_sizes) {
  BOOST_TEST(spell("3+2+2", 7) == "(0+1+2)+(3+4)+(5+6)");
  BOOST_TEST(spell("3+1", 4) == "(0+1+2)+(3)");
  BOOST_TEST(spell("1+1+1", 3) == "(0)+(1)+(2)");
  BOOST_TEST(spell("2+2", 4) == spell("2x2", 4));
  BOOST_TEST(spell("2x(2+1)", 6) == "((0+1)+(2))+((3+4)+(5))");
  BOOST_TEST(spell("(2+2+1)+(1+1)", 7) == "((0+1)+(2+3)+(4))+((5)+(6))");
  BOOST_TEST(spell("2x2+1x3", 7) == "((0+1)+(2+3))+((4+5+6))");
}

BOOST_AUTO_TEST_CASE(groups_of_fewer_levels_are_alone_in_a_group) {
  BOOST_TEST(spell("(2+1)+2", 5) == "((0+1)+(2))+((3+4))");
  BOOST_TEST(spell("1+(2+1)", 4) == "((0))+((1+2)+(3))");
  BOOST_TEST(spell("(3)", 3) == "0+1+2");
  BOOST_TEST(spell("((2+1))", 3) == "(0+1)+(2)");
}

BOOST_AUTO_TEST_CASE(totals_are_of_all_groups) {
  BOOST_TEST(Nesting::parse("3+2+2")->total() == 7);
  BOOST_TEST(Nesting::parse("2x(2+1)")->total() == 6);
  BOOST_TEST(Nesting::parse("")->total() == 0);
  BOOST_TEST(Nesting::parse("3+2+2")->levels() == 2);
  BOOST_TEST(Nesting::parse("(2+1)+2")->levels() == 3);
}

BOOST_AUTO_TEST_CASE(a_short_sum_closes_its_open_groups) {
  BOOST_TEST(spell("2x3", 4) == "(0+1+2)+(3)");
  BOOST_TEST(spell("2+3", 4) == "(0+1)+(2+3)");
}

BOOST_AUTO_TEST_CASE(bad_nestings_are_refused) {
  for (const char* bad : {"x",
                          "2x",
                          "x2",
                          "0",
                          "2x0",
                          "-1",
                          "2 x 2",
                          "a",
                          "1000001",
                          "2xx2",
                          "1000000x1000000",
                          "+",
                          "2+",
                          "+2",
                          "2++1",
                          "3+0",
                          "(2",
                          "2)",
                          "()",
                          "(2)1",
                          "2(1)",
                          "(2)x2",
                          "999999+2",
                          "2x(1+)",
                          "2x(2+1"}) {
    BOOST_TEST(!Nesting::parse(bad).ok(), bad);
  }
}

BOOST_AUTO_TEST_CASE(deep_nestings_are_refused) {
  std::string levels = "1", open(100'000, '(');
  for (int i = 0; i < 31; ++i) levels = "1x" + levels;
  BOOST_TEST(Nesting::parse(levels).ok());
  BOOST_TEST(!Nesting::parse("1x" + levels).ok());
  BOOST_TEST(!Nesting::parse(open).ok());
  BOOST_TEST(!Nesting::parse(open + "1" + std::string(100'000, ')')).ok());
}

}  // namespace
}  // namespace aliquot::engine
