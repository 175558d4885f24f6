// The choice of stores follows a machine whose cores come near and go far.
#include "comm/mem/store_trial.h"

#include <boost/test/unit_test.hpp>

namespace aliquot::mem {
namespace {

// Operations whose time depends on how the last one, and this one, stored.
struct Machine {
  int64_t cached = 100, streamed = 50;  // ns
  StoreTrial trial;
  bool streams = false, streamed_before = false;
  int64_t now = 0, slow = 0;  // ns in the slower way

  void run(int count, uint64_t like = 1) {
    for (int i = 0; i < count; ++i) {
      const int64_t ns = streamed_before ? streamed : cached;
      now += ns;
      if (ns == std::max(cached, streamed)) slow += ns;
      streamed_before = streams;
      if (trial.ended(like, ns, now)) streams = !streams;
    }
  }
};

BOOST_AUTO_TEST_CASE(the_faster_way_is_found_and_kept) {
  Machine machine;
  machine.run(20);
  BOOST_TEST(machine.streams);
  machine.run(100000);
  machine.slow = machine.now = 0;
  machine.run(100000);
  BOOST_TEST(machine.slow < machine.now / 100);
  machine.cached = 20;  // the host moved a processor
  machine.run(20000);
  machine.slow = machine.now = 0;
  machine.run(100000);
  BOOST_TEST(machine.slow < machine.now / 50);
}

BOOST_AUTO_TEST_CASE(what_differs_little_does_not_swing) {
  Machine machine;
  machine.cached = 100;
  machine.streamed = 98;
  machine.run(10000);
  int turns = 0;
  for (int i = 0; i < 10000; ++i) {
    const bool before = machine.streams;
    machine.run(1);
    turns += machine.streams != before ? 1 : 0;
  }
  BOOST_TEST(turns < 40);  // each trial turns twice
}

BOOST_AUTO_TEST_CASE(another_operation_ends_a_trial_as_it_began) {
  Machine machine;
  machine.streamed = 1000;
  while (!machine.streams) machine.run(1);
  machine.run(1, 2);
  BOOST_TEST(!machine.streams);
  // Never four alike in a row: no trial.
  for (uint64_t like = 3; like < 1000; ++like) machine.run(1, like);
  BOOST_TEST(!machine.streams);
}

BOOST_AUTO_TEST_CASE(sizes_are_chosen_for_by_themselves) {
  BOOST_TEST(store_kind(false, 0) == 0);
  BOOST_TEST(store_kind(false, 16 << 10) == 0);
  BOOST_TEST(store_kind(false, 32 << 10) == 1);
  BOOST_TEST(store_kind(false, int64_t{1} << 50) == kStoreSizes - 1);
  BOOST_TEST(store_kind(true, 0) == kStoreSizes);
  BOOST_TEST(store_kind(true, int64_t{1} << 50) == kStoreKinds - 1);
}

}  // namespace
}  // namespace aliquot::mem
