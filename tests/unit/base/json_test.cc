#include "base/json.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>

namespace aliquot {
namespace {

BOOST_AUTO_TEST_CASE(objects_keep_their_order_and_numbers_their_value) {
  Json j;
  j["z"] = 1;
  j["a"] = 0.1;
  j["big"] = int64_t{9007199254740993};
  j["whole"] = 2.0;
  j["none"] = Json();
  j["list"].push_back(true);
  j["list"].push_back("x");
  j["z"] = -1;
  BOOST_TEST(j.dump() ==
             "{\"z\": -1, \"a\": 0.1, \"big\": 9007199254740993, "
             "\"whole\": 2.0, \"none\": null, \"list\": [true, \"x\"]}");
  BOOST_TEST(Json::object().dump(2) == "{}");
  Json nested;
  nested["a"].push_back(1);
  BOOST_TEST(nested.dump(2) == "{\n  \"a\": [\n    1\n  ]\n}");
}

BOOST_AUTO_TEST_CASE(doubles_read_back_bit_for_bit) {
  for (double x : {1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0, 1e22}) {
    Result<Json> back = Json::parse(Json(x).dump());
    BOOST_REQUIRE(back.ok());
    BOOST_TEST(back->as_double() == x);
    BOOST_TEST(std::signbit(back->as_double()) == std::signbit(x));
  }
  BOOST_TEST(Json(std::numeric_limits<double>::infinity()).dump() == "null");
  BOOST_TEST(Json(std::nan("")).dump() == "null");
  BOOST_TEST(Json(~uint64_t{0}).dump() == "18446744073709551616.0");
}

BOOST_AUTO_TEST_CASE(text_is_always_valid_utf8) {
  BOOST_TEST(Json("a\"\\\n\t\x01").dump() == "\"a\\\"\\\\\\n\\t\\u0001\"");
  BOOST_TEST(Json("\xC3\xA9").dump() == "\"\xC3\xA9\"");
  for (const char* bad : {"\xff", "\xC3", "\xC0\x80", "\xED\xA0\x80",
                          "\xF4\x90\x80\x80", "\xE2\x82"}) {
    std::string text = Json(bad).dump();
    BOOST_TEST(text.starts_with("\"\xEF\xBF\xBD"));
    BOOST_TEST(Json::parse(text).ok());
  }
}

BOOST_AUTO_TEST_CASE(parsing_gives_values_by_type) {
  Result<Json> j = Json::parse(R"({"i": 3, "d": 3.5, "s": "t", "b": true,
    "n": null, "a": [1, {"x": 2}]})");
  BOOST_REQUIRE(j.ok());
  BOOST_TEST(j->at("i").as_int() == 3);
  BOOST_TEST(j->at("i").as_double() == 3.0);
  BOOST_TEST(j->at("d").as_int(7) == 7);
  BOOST_TEST(j->at("s").as_string() == "t");
  BOOST_TEST(j->at("b").as_bool());
  BOOST_TEST(j->at("n").is_null());
  BOOST_TEST(j->at("absent").is_null());
  BOOST_TEST(j->at("a").size() == 2u);
  BOOST_TEST(j->at("a").at(1).at("x").as_int() == 2);
  BOOST_TEST(j->at("a").at(9).is_null());
}

BOOST_AUTO_TEST_CASE(bad_text_is_an_error_that_names_the_byte) {
  for (const char* text :
       {"", "{", "[1,]", "{\"a\" 1}", "nul", "1 2", "\xff"}) {
    BOOST_TEST(Json::parse(text).status().code() == ALQ_INVALID_ARGUMENT, text);
  }
  BOOST_TEST(Json::parse("[1,]").status().message() == "not JSON at byte 4");
  std::string deep(100'000, '[');
  BOOST_TEST(Json::parse(deep).status().message() == "nested deeper than 256");
}

}  // namespace
}  // namespace aliquot
