#include "base/dynlib.h"

#include <boost/test/unit_test.hpp>

namespace aliquot {
namespace {

BOOST_AUTO_TEST_CASE(a_copy_in_the_process_comes_first) {
  LibrarySet set;
  Result<void*> libc = set.open({"c", {"libc.so.6"}, "", {"/nonexistent"}});
  BOOST_REQUIRE(libc.ok());
  LibraryRecord record = set.records().at(0);
  BOOST_TEST(record.how == "process");
  BOOST_TEST(record.path.find("libc.so.6") != std::string::npos);
  BOOST_TEST(record.warning.empty());
  BOOST_TEST(set.symbol("c", "malloc").ok());
  BOOST_TEST(set.symbol("c", "no_such_symbol").status().code() ==
             ALQ_NOT_FOUND);
}

BOOST_AUTO_TEST_CASE(what_is_missing_says_what_was_tried) {
  LibrarySet set;
  LibrarySpec spec = {"ghost", {"libghost.so.1"}, "", {"/nonexistent"}};
  Result<void*> handle = set.open(spec);
  BOOST_TEST(handle.status().code() == ALQ_NOT_FOUND);
  LibraryRecord record = set.records().at(0);
  BOOST_TEST(!record.loaded);
  BOOST_REQUIRE(record.failures.size() == 3u);
  BOOST_TEST(record.failures[0].starts_with("process libghost.so.1: "));
  BOOST_TEST(record.failures[1].starts_with("hint /nonexistent/libghost.so.1"));
  BOOST_TEST(record.failures[2].starts_with("system libghost.so.1: "));
  for (const std::string& failure : record.failures) {
    BOOST_TEST(handle.status().message().find(failure) != std::string::npos);
  }
  BOOST_TEST(set.symbol("ghost", "x").status().code() ==
             ALQ_FAILED_PRECONDITION);
}

BOOST_AUTO_TEST_CASE(an_override_is_the_only_place_looked_at) {
  LibrarySet set;
  LibrarySpec spec = {"c", {"libc.so.6"}, "/nonexistent/libc.so.6", {}};
  BOOST_TEST(!set.open(spec).ok());
  BOOST_TEST(set.records().at(0).failures.size() == 1u);
  BOOST_TEST(!set.open(spec).ok());  // asked again, not tried again
  BOOST_TEST(set.records().at(0).failures.size() == 1u);
}

BOOST_AUTO_TEST_CASE(records_are_readable_as_json) {
  LibrarySet set;
  BOOST_REQUIRE(set.open({"m", {"libm.so.6"}, "", {}}).ok());
  BOOST_TEST(!set.open({"ghost", {"libghost.so.1"}, "", {}}).ok());
  set.set_version("m", "2.36");
  Result<Json> j = Json::parse(set.json().dump());
  BOOST_REQUIRE(j.ok());
  BOOST_TEST(j->size() == 2u);
  BOOST_TEST(!j->at(0).at("loaded").as_bool(true));
  BOOST_TEST(j->at(1).at("loaded").as_bool());
  BOOST_TEST(j->at(1).at("version").as_string() == "2.36");
}

}  // namespace
}  // namespace aliquot
