// The choice of ways follows a machine whose cores come near and go far.
#include "comm/mem/way_trial.h"

#include <boost/test/unit_test.hpp>

namespace aliquot::mem {
namespace {

// Operations whose time depends on which way the last one, and this one, went.
struct Machine {
  int64_t ns[kWays] = {0, 100, 50, 1000, 1000};
  uint32_t possible = kStores;
  WayTrial trial;
  Way way = kCached, before = kCached;
  int64_t now = 0, slow = 0;  // ns in ways that are not the fastest
  int turns = 0;

  int64_t fastest() const {
    int64_t least = INT64_MAX;
    for (int w = kCached; w < kWays; ++w) {
      if ((possible >> w & 1) != 0) least = std::min(least, ns[w]);
    }
    return least;
  }

  void run(int count, uint64_t like = 1) {
    for (int i = 0; i < count; ++i) {
      const int64_t took = ns[before];
      now += took;
      if (took != fastest()) slow += took;
      before = way;
      way = trial.ended(way, possible, like, took, now);
      turns += way != before ? 1 : 0;
    }
  }
  int64_t one_of_slow(int count) {
    slow = now = 0;
    run(count);
    return slow == 0 ? INT64_MAX : now / slow;
  }
};

BOOST_AUTO_TEST_CASE(the_faster_way_is_found_and_kept) {
  Machine machine;
  machine.run(20);
  BOOST_TEST(machine.way == kStreamed);
  machine.run(100000);
  BOOST_TEST(machine.one_of_slow(100000) > 100);
  machine.ns[kCached] = 20;  // the host moved a processor
  machine.run(20000);
  BOOST_TEST(machine.way == kCached);
  BOOST_TEST(machine.one_of_slow(100000) > 50);
}

BOOST_AUTO_TEST_CASE(all_possible_ways_are_tried) {
  Machine machine;
  machine.possible = kStores | 1u << kRead;
  machine.ns[kRead] = 10;
  machine.run(40);
  BOOST_TEST(machine.way == kRead);
  machine.run(100000);
  BOOST_TEST(machine.one_of_slow(100000) > 50);
  machine.possible |= 1u << kReadStreamed;
  machine.ns[kReadStreamed] = 8;
  machine.run(10000);
  BOOST_TEST(machine.way == kReadStreamed);
  machine.ns[kRead] = machine.ns[kReadStreamed] = 500;  // pages became small
  machine.run(100000);
  BOOST_TEST(machine.way == kStreamed);
  machine.possible = kStores;
  machine.ns[kRead] = 1;
  machine.run(100000);
  BOOST_TEST(machine.way == kStreamed);
}

BOOST_AUTO_TEST_CASE(a_hopeless_way_is_given_up_early) {
  Machine machine;
  machine.way = machine.before = kStreamed;
  machine.ns[kCached] = 500;
  machine.run(20);
  BOOST_TEST(machine.way == kStreamed);
  BOOST_TEST(machine.turns == 2);
  BOOST_TEST(machine.slow == 3 * 500);
}

BOOST_AUTO_TEST_CASE(what_differs_little_does_not_swing) {
  Machine machine;
  machine.ns[kStreamed] = 98;
  machine.run(10000);
  machine.turns = 0;
  machine.run(10000);
  BOOST_TEST(machine.turns < 40);  // each trial turns twice
}

BOOST_AUTO_TEST_CASE(another_operation_ends_a_trial_as_it_began) {
  Machine machine;
  machine.ns[kStreamed] = 1000;
  while (machine.way != kStreamed) machine.run(1);
  machine.run(1, 2);
  BOOST_TEST(machine.way == kCached);
  // Never four alike in a row: no trial.
  for (uint64_t like = 3; like < 1000; ++like) machine.run(1, like);
  BOOST_TEST(machine.way == kCached);
}

BOOST_AUTO_TEST_CASE(other_operations_are_tried_anew) {
  Machine machine;
  machine.run(200000);  // the slower way is left alone for long
  BOOST_TEST(machine.way == kStreamed);
  machine.ns[kCached] = 20;
  machine.run(1000, 2);
  BOOST_TEST(machine.way == kCached);
}

// Operations are queued while the way changes.
BOOST_AUTO_TEST_CASE(what_began_before_a_change_does_not_count) {
  WayTrial trial;
  int64_t now = 0;
  Way way = kCached;
  while (way == kCached) way = trial.ended(way, kStores, 1, 100, now += 100);
  for (int i = 0; i < 100; ++i) {
    const Way next = trial.ended(kCached, kStores, 1, 1, now += 1);
    BOOST_TEST(next == kStreamed);
  }
  for (int i = 0; i < 5; ++i) trial.ended(way, kStores, 1, 200, now += 200);
  way = trial.ended(way, kStores, 1, 200, now += 200);
  BOOST_TEST(way == kCached);
}

BOOST_AUTO_TEST_CASE(sizes_are_chosen_for_by_themselves) {
  BOOST_TEST(moved_kind(Moved::kResults, 0) == 0);
  BOOST_TEST(moved_kind(Moved::kResults, 16 << 10) == 0);
  BOOST_TEST(moved_kind(Moved::kResults, 32 << 10) == 1);
  BOOST_TEST(moved_kind(Moved::kResults, int64_t{1} << 50) == kMovedSizes - 1);
  BOOST_TEST(moved_kind(Moved::kReduced, 0) == kMovedSizes);
  BOOST_TEST(moved_kind(Moved::kSums, 0) == 2 * kMovedSizes);
  BOOST_TEST(moved_kind(Moved::kCopies, int64_t{1} << 50) == kMovedKinds - 1);
}

}  // namespace
}  // namespace aliquot::mem
