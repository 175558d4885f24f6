#include "base/log.h"

#include <boost/test/unit_test.hpp>

namespace aliquot {
namespace {

BOOST_AUTO_TEST_CASE(lines_come_out_in_order) {
  LogRing log;
  log.info("group", "{} ranks", 4);
  log.warn("device", "no huge pages");
  BOOST_TEST(log.peek() == "info group: 4 ranks");
  log.pop();
  BOOST_TEST(log.peek() == "warning device: no huge pages");
  log.pop();
  BOOST_TEST(log.peek().empty());
  log.pop();
}

BOOST_AUTO_TEST_CASE(a_full_ring_drops_the_oldest_and_says_so) {
  LogRing log;
  for (int i = 0; i < 1030; ++i) log.info("x", "{}", i);
  BOOST_TEST(log.peek() == "info x: 6 (6 earlier lines dropped)");
}

}  // namespace
}  // namespace aliquot
