// How a rank waits when another one is on its core, and when it is not.
#include "device/cpu/runner.h"

#include <sched.h>

#include <boost/test/unit_test.hpp>

namespace aliquot {
namespace {

constexpr int kLooks = 1000;

// Keeps the thread on one core.
class Pinned {
 public:
  Pinned() : core_(sched_getcpu()) {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core_, &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~Pinned() { sched_setaffinity(0, sizeof before_, &before_); }
  int32_t core() const { return core_; }

 private:
  const int32_t core_;
  cpu_set_t before_;
};

// Looks of rank 0 of two before it first yields or sleeps, while the other one
// was seen last on the same core, or nowhere.
int looks_at_once(bool beside) {
  Bell bells[2];
  Runner runner(std::make_shared<Context>(0, 2), ALQ_PROGRESS_OFF);
  runner.use_bells(bells, 0, 2, nullptr);  // counts the cores
  const Pinned here;
  if (beside) bells[1].core.store(here.core());
  int looks = 0, at_once = 0;
  bool quick = true;
  auto poll = [&](bool slow) {
    quick = quick && !slow;
    at_once += quick ? 1 : 0;
    bells[0].rings.fetch_add(1);  // no sleep lasts
    return ++looks == kLooks ? Step::kDone : Step::kWaiting;
  };
  WaitCounts counts;
  BOOST_TEST(runner.wait(Poll(poll), Deadline::after(10'000'000'000), &counts));
  BOOST_TEST(counts.sleeps > 0);
  BOOST_TEST(bells[0].sleepers.load() == 0u);
  BOOST_TEST((bells[0].core.load() == here.core()));
  return at_once;
}

BOOST_AUTO_TEST_CASE(who_shares_a_core_gives_it_up) {
  if (online_cores() < 2) return;  // nobody spins there
  BOOST_TEST(looks_at_once(false) > 200);
  BOOST_TEST(looks_at_once(true) < 20);
}

}  // namespace
}  // namespace aliquot
