#include "base/fault.h"

#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>

namespace aliquot {
namespace {

BOOST_AUTO_TEST_CASE(an_unarmed_point_does_nothing) {
  Faults faults(0);
  BOOST_TEST(faults.point("coll.data").ok());
}

BOOST_AUTO_TEST_CASE(an_error_fires_once_at_its_hit_and_rank) {
  Faults faults(1);
  BOOST_REQUIRE(faults.arm("coll.data:2@1=error,coll.done@0=error").ok());
  BOOST_TEST(faults.point("coll.data").ok());
  BOOST_TEST(faults.point("coll.data").code() == ALQ_INTERNAL);
  BOOST_TEST(faults.point("coll.data").ok());
  BOOST_TEST(faults.point("coll.done").ok());
  BOOST_REQUIRE(faults.arm("").ok());
  BOOST_TEST(faults.point("coll.data").ok());
}

BOOST_AUTO_TEST_CASE(bad_specs_say_what_is_wrong) {
  Faults faults(0);
  BOOST_TEST(faults.arm("no.such.point=kill").code() == ALQ_NOT_FOUND);
  for (const char* spec :
       {"coll.data", "coll.data:0=kill", "coll.data:x=kill", "coll.data@z=kill",
        "coll.data=explode", "coll.data=delay_ms/-1"}) {
    BOOST_TEST(faults.arm(spec).code() == ALQ_INVALID_ARGUMENT, spec);
  }
}

BOOST_AUTO_TEST_CASE(skip_lasts_until_it_is_disarmed) {
  Faults faults(1);
  BOOST_TEST(!faults.skips("engine.comm"));
  BOOST_TEST(faults.arm("engine.comm=skip").ok());
  for (int i = 0; i < 3; ++i) BOOST_TEST(faults.skips("engine.comm"));
  BOOST_TEST(!faults.skips("engine.step"));
  BOOST_TEST(faults.arm("engine.comm@0=skip").ok());
  BOOST_TEST(!faults.skips("engine.comm"));
  BOOST_TEST(faults.arm("engine.step=skip").code() == ALQ_INVALID_ARGUMENT);
  BOOST_TEST(faults.arm("engine.comm=kill").code() == ALQ_INVALID_ARGUMENT);
}

BOOST_AUTO_TEST_CASE(exit_ends_the_process_with_its_code) {
  pid_t child = fork();
  if (child == 0) {
    Faults faults(0);
    if (faults.arm("engine.step=exit").ok() &&
        faults.point("engine.step").ok()) {
      _exit(0);
    }
    _exit(1);
  }
  int status = 0;
  BOOST_REQUIRE(waitpid(child, &status, 0) == child);
  BOOST_TEST(WIFEXITED(status));
  BOOST_TEST(WEXITSTATUS(status) == 7);
}

}  // namespace
}  // namespace aliquot
