#include "base/status.h"

#include <boost/test/unit_test.hpp>
#include <cerrno>

#include "base/dtype.h"

namespace aliquot {
namespace {

Status fails() { return make_error(ALQ_NOT_FOUND, "unit {}", 3); }
Result<int> half(int x) {
  if (x % 2 != 0) return make_error(ALQ_INVALID_ARGUMENT, "{} is odd", x);
  return x / 2;
}
Status quarter(int x, int* out) {
  ALQ_ASSIGN(int h, half(x));
  ALQ_ASSIGN(*out, half(h));
  return {};
}

BOOST_AUTO_TEST_CASE(ok_status_is_empty) {
  Status ok;
  BOOST_TEST(ok.ok());
  BOOST_TEST(ok.code() == ALQ_OK);
  BOOST_TEST(ok.message().empty());
  BOOST_TEST(ok.rank() == -1);
}

BOOST_AUTO_TEST_CASE(a_status_carries_its_fields_and_copies) {
  Status s = fails().with_rank(5).with_native(ALQ_DOMAIN_ERRNO, 11);
  Status copy = s;
  BOOST_TEST(copy.code() == ALQ_NOT_FOUND);
  BOOST_TEST(copy.message() == "unit 3");
  BOOST_TEST(copy.rank() == 5);
  BOOST_TEST(copy.native_code() == 11);
  BOOST_TEST(s.message() == "unit 3");
}

BOOST_AUTO_TEST_CASE(results_propagate_the_first_error) {
  int out = 0;
  BOOST_TEST(quarter(12, &out).ok());
  BOOST_TEST(out == 3);
  BOOST_TEST(quarter(6, &out).message() == "3 is odd");
}

BOOST_AUTO_TEST_CASE(errno_errors_name_the_number) {
  Status s = errno_error(ALQ_UNAVAILABLE, "open /x", ENOENT);
  BOOST_TEST(s.message() == "open /x: No such file or directory (errno 2)");
  BOOST_TEST(s.native_code() == ENOENT);
}

BOOST_AUTO_TEST_CASE(dtypes_know_their_size_and_name) {
  BOOST_TEST(dtype_size(ALQ_BF16) == 2);
  BOOST_TEST(dtype_size(99) == 0);
  BOOST_TEST(dtype_name(ALQ_F8E5M2) == std::string("f8e5m2"));
  BOOST_TEST(dtype_name(-1) == std::string("?"));
  BOOST_TEST(accumulate_dtype(ALQ_F16) == ALQ_F32);
  BOOST_TEST(accumulate_dtype(ALQ_F64) == ALQ_F64);
}

}  // namespace
}  // namespace aliquot
