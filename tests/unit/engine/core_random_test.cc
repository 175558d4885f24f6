// Thousands of random legal sequences against a model of the memory that the
// core manages: what a begun unit reads must be there and current, gathers must
// be as few as the slots allow, and nothing may stay needed.
#include <boost/test/unit_test.hpp>
#include <random>

#include "core_fixture.h"

namespace aliquot::engine {
namespace {

class Host {
 public:
  Host(uint32_t seed, const ShapeOptions& o)
      : rng_(seed),
        o_(o),
        core_(shape_of(o)),
        slot_(static_cast<size_t>(o.slots), {-1, -1}) {}

  void run_step() {
    int microbatches = pick(1, 3);
    for (int m = 0; m < microbatches; ++m) run_microbatch(pick(0, 4) == 0);
    ++version_;
    BOOST_REQUIRE(core_.step().ok());
  }

  int64_t gathers() const { return core_.gathers(); }
  int64_t misses() const { return misses_; }

 private:
  struct Contents {
    int32_t bundle;
    int64_t version;
  };

  int pick(int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(rng_);
  }

  // Applies actions to the model memory.
  void apply() {
    for (const Action& a : core_.actions()) {
      size_t slot = static_cast<size_t>(a.bundle % o_.slots);
      if (a.kind == ActionKind::kGather) {
        BOOST_REQUIRE(!open_in_slot(slot, a.bundle));
        slot_[slot] = {a.bundle, version_};
      }
      if (a.kind == ActionKind::kReduce)
        ++reduced_[static_cast<size_t>(a.bundle)];
    }
    core_.actions().clear();
  }

  bool open_in_slot(size_t slot, int32_t except) const {
    for (size_t u = 0; u < open_.size(); ++u) {
      if (static_cast<int32_t>(u) != except && open_[u] > 0 &&
          u % static_cast<size_t>(o_.slots) == slot &&
          slot_[slot].bundle == static_cast<int32_t>(u)) {
        return true;
      }
    }
    return false;
  }

  bool begin(int32_t u, int32_t pass) {
    size_t slot = static_cast<size_t>(u % o_.slots);
    bool there = slot_[slot].bundle == u && slot_[slot].version == version_;
    CoreError e = core_.unit_begin(u, pass, true);
    if (!e.ok()) {
      BOOST_REQUIRE(e.code == CoreCode::kSlotBusy ||
                    e.code == CoreCode::kGradSlotBusy);
      BOOST_REQUIRE(core_.actions().empty());
      return false;
    }
    misses_ += there ? 0 : 1;
    apply();
    // Prefetches of this call may only have used other slots.
    BOOST_REQUIRE(slot_[slot].bundle == u);
    BOOST_REQUIRE(slot_[slot].version == version_);
    ++open_[static_cast<size_t>(u)];
    return true;
  }

  void end(int32_t u, int32_t pass) {
    BOOST_REQUIRE(core_.unit_end(u, pass).ok());
    --open_[static_cast<size_t>(u)];
    apply();
  }

  void run_microbatch(bool eval) {
    open_.assign(static_cast<size_t>(o_.units), 0);
    reduced_.assign(static_cast<size_t>(o_.units), 0);
    BOOST_REQUIRE(core_.microbatch_begin(eval ? ALQ_EVAL : ALQ_TRAIN).ok());
    apply();
    int32_t pass = eval ? ALQ_PASS_F_NOGRAD : ALQ_PASS_F;
    for (int32_t u = 0; u < o_.units; ++u) {
      if (pick(0, 9) == 0) continue;  // skipped unit
      if (!begin(u, pass)) continue;
      if (pick(0, 9) != 0) end(u, pass);  // sometimes never ended
    }
    for (int32_t u = o_.units; !eval && u-- > 0;) {
      if (pick(0, 9) == 0) continue;
      bool recompute = pick(0, 2) == 0;
      if (recompute && pick(0, 1) == 0 && begin(u, ALQ_PASS_R)) {
        end(u, ALQ_PASS_R);
      }
      if (!begin(u, ALQ_PASS_B)) continue;
      bool inner = recompute && begin(u, ALQ_PASS_R);
      if (pick(0, 9) != 0) {
        BOOST_REQUIRE(core_.grad_ready(u).ok());
        open_[static_cast<size_t>(u)] = still_open(u);
        apply();
      }
      if (inner && pick(0, 1) == 0) end_if_counted(u, ALQ_PASS_R);
      if (pick(0, 1) == 0) end_if_counted(u, ALQ_PASS_B);
    }
    BOOST_REQUIRE(core_.microbatch_end().ok());
    open_.assign(static_cast<size_t>(o_.units), 0);
    apply();
    BOOST_REQUIRE(core_.needed() == 0);
    for (size_t u = 0; !eval && u < reduced_.size(); ++u) {
      BOOST_REQUIRE(reduced_[u] == 1);
    }
  }

  // After all gradients are final only forward passes keep a unit open; the
  // model simply forgets backward ones.
  int32_t still_open(int32_t) const { return 0; }
  void end_if_counted(int32_t u, int32_t pass) {
    BOOST_REQUIRE(core_.unit_end(u, pass).ok());
    int32_t& n = open_[static_cast<size_t>(u)];
    if (n > 0) --n;
    apply();
  }

  std::mt19937 rng_;
  ShapeOptions o_;
  Core core_;
  std::vector<Contents> slot_;
  std::vector<int32_t> open_, reduced_;
  int64_t version_ = 0, misses_ = 0;
};

BOOST_AUTO_TEST_CASE(ten_thousand_random_sequences_read_what_they_asked_for) {
  for (uint32_t seed = 0; seed < 2500; ++seed) {
    std::mt19937 rng(seed);
    auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(rng);
    };
    ShapeOptions o;
    o.units = pick(1, 9);
    o.slots = std::min(o.units, pick(1, 4));
    o.prefetch = pick(0, 3);
    Host host(seed, o);
    for (int step = 0; step < 4; ++step) host.run_step();
    // Without prefetch a gather happens exactly on a miss.
    if (o.prefetch == 0) BOOST_TEST(host.gathers() == host.misses());
  }
}

}  // namespace
}  // namespace aliquot::engine
