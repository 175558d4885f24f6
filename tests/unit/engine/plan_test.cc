// Plans: the published memory table, traffic formulas, caps.
#include <boost/test/unit_test.hpp>

#include "plan_fixture.h"

namespace aliquot::engine {
namespace {

// States at rest: what does not depend on slots.
double gigabytes_at_rest(const Plan& p, bool full_grads) {
  int64_t bytes =
      p.total_bytes() - p.by_owner[static_cast<size_t>(Owner::kSlot)];
  if (!full_grads) bytes -= p.by_owner[static_cast<size_t>(Owner::kGrad)];
  return static_cast<double>(bytes) * 1e-9;
}

// Rajbhandari et al., ZeRO, figure 1: 7.5 B parameters, 64 ranks, mixed
// precision Adam with K = 12.
BOOST_AUTO_TEST_CASE(the_zero_table_comes_out_of_the_planner) {
  Setup s = uniform(75, 100'000'000, ALQ_BF16);
  s.config.accumulate_dtype = ALQ_BF16;  // the table's 2-byte gradients
  auto at_rest = [&](int32_t which, bool full_grads) {
    Result<Plan> p = plan(s, 64, 1, strategy(which));
    BOOST_REQUIRE_MESSAGE(p.ok(), p.status().message());
    return gigabytes_at_rest(*p, full_grads);
  };
  BOOST_TEST(at_rest(ALQ_STRATEGY_DDP, true) == 120.0,
             boost::test_tools::tolerance(0.001));
  BOOST_TEST(at_rest(ALQ_STRATEGY_ZERO1, true) == 31.4,
             boost::test_tools::tolerance(0.002));
  BOOST_TEST(at_rest(ALQ_STRATEGY_ZERO2, false) == 16.6,
             boost::test_tools::tolerance(0.004));
  BOOST_TEST(at_rest(ALQ_STRATEGY_FSDP, false) == 1.88,
             boost::test_tools::tolerance(0.004));
}

BOOST_AUTO_TEST_CASE(traffic_is_the_formula_to_the_byte) {
  constexpr int64_t kCount = 4096;
  constexpr int32_t kUnits = 8, kRanks = 4;
  Setup s = uniform(kUnits, kCount, ALQ_F32);
  int64_t psi = kUnits * kCount * 4;
  auto part = [&](int64_t bytes) { return bytes * (kRanks - 1) / kRanks; };
  auto traffic = [&](int32_t which, int32_t microbatches) {
    alq_plan_desc d = strategy(which);
    d.microbatches = microbatches;
    Result<Plan> p = plan(s, kRanks, 1, d);
    BOOST_REQUIRE_MESSAGE(p.ok(), p.status().message());
    return *p;
  };
  Plan ddp = traffic(ALQ_STRATEGY_DDP, 1);
  BOOST_TEST(ddp.gather_bytes == 0);
  BOOST_TEST(ddp.reduce_bytes == 2 * part(psi));
  for (int32_t which : {ALQ_STRATEGY_ZERO1, ALQ_STRATEGY_ZERO2}) {
    Plan p = traffic(which, 1);
    BOOST_TEST(p.gather_bytes == part(psi));
    BOOST_TEST(p.reduce_bytes == part(psi));
  }
  // FSDP gathers twice, less the two units that stay at the turn.
  Plan fsdp = traffic(ALQ_STRATEGY_FSDP, 1);
  BOOST_TEST(fsdp.gather_bytes == part(2 * psi) - part(2 * kCount * 4));
  BOOST_TEST(fsdp.reduce_bytes == part(psi));
  // Each further microbatch begins where the last backward ended: units 0
  // and 1.
  Plan three = traffic(ALQ_STRATEGY_FSDP, 3);
  BOOST_TEST(three.gather_bytes ==
             3 * fsdp.gather_bytes - 2 * part(2 * kCount * 4));
  BOOST_TEST(three.reduce_bytes == 3 * part(psi));
  // Deferred: DDP reduces once.
  BOOST_TEST(traffic(ALQ_STRATEGY_DDP, 3).reduce_bytes == 2 * part(psi));
}

BOOST_AUTO_TEST_CASE(hsdp_splits_its_traffic_over_two_axes) {
  constexpr int64_t kCount = 4096;
  Setup s = uniform(4, kCount, ALQ_F32);
  Result<Plan> p = plan(s, 4, 2, strategy(ALQ_STRATEGY_HSDP));
  BOOST_REQUIRE(p.ok());
  int64_t psi = 4 * kCount * 4;
  BOOST_TEST(p->reduce_bytes == psi * 3 / 4 + psi / 4);
}

BOOST_AUTO_TEST_CASE(transients_are_two_units) {
  constexpr int64_t kCount = 1 << 16;
  Setup s = uniform(12, kCount, ALQ_F32);
  Result<Plan> p = plan(s, 4, 1, strategy(ALQ_STRATEGY_FSDP));
  BOOST_REQUIRE(p.ok());
  BOOST_TEST(p->by_owner[static_cast<size_t>(Owner::kSlot)] == 2 * kCount * 4);
  BOOST_TEST(p->by_owner[static_cast<size_t>(Owner::kGrad)] == 2 * kCount * 4);
  int64_t quarter = 12 * kCount * 4 / 4;
  BOOST_TEST(p->by_owner[static_cast<size_t>(Owner::kParam)] == quarter);
  BOOST_TEST(p->by_owner[static_cast<size_t>(Owner::kState)] == 2 * quarter);
  BOOST_TEST(p->by_owner[static_cast<size_t>(Owner::kAccum)] == quarter);
}

// No other unit's gradients come where the root's lie: what one reduction
// leaves can stay there until the update, but not what several add up to.
BOOST_AUTO_TEST_CASE(the_roots_sum_lies_in_its_gradients) {
  constexpr int64_t kCount = 1 << 16;
  Setup s = uniform(12, kCount, ALQ_F32);
  s.model.units[0].root = true;
  int64_t quarter = kCount * 4 / 4;
  auto sums = [&](const alq_plan_desc& d) {
    Result<Plan> p = plan(s, 4, 1, d);
    BOOST_REQUIRE_MESSAGE(p.ok(), p.status().message());
    const SegmentPlan& root = p->bundles[0].segments[0];
    bool inside = root.sum.offset >= root.grad.offset &&
                  root.sum.offset < root.grad.offset + kCount * 4;
    BOOST_TEST(inside == (d.microbatches == 1));
    BOOST_TEST(root.final.offset == root.sum.offset);
    return p->by_owner[static_cast<size_t>(Owner::kAccum)];
  };
  alq_plan_desc d = strategy(ALQ_STRATEGY_FSDP);
  d.microbatches = 1;
  BOOST_TEST(sums(d) == 11 * quarter);
  d.microbatches = 2;
  BOOST_TEST(sums(d) == 12 * quarter);
}

BOOST_AUTO_TEST_CASE(a_mapped_gather_keeps_one_copy_per_host) {
  constexpr int64_t kCount = 1 << 16;
  Setup s = uniform(12, kCount, ALQ_F32);
  Result<Plan> p = plan(s, 4, 1, strategy(ALQ_STRATEGY_FSDP), true);
  BOOST_REQUIRE(p.ok());
  BOOST_TEST(p->maps());
  BOOST_TEST(p->common_bytes == 12 * kCount * 4);
  BOOST_TEST(p->gather_bytes == 0);
}

BOOST_AUTO_TEST_CASE(what_all_have_whole_is_updated_together_on_one_host) {
  constexpr int64_t kCount = 1 << 16, kSize = 12 * kCount * 4;
  Setup s = uniform(12, kCount, ALQ_F32);
  alq_plan_desc d = strategy(ALQ_STRATEGY_DDP);
  Result<Plan> p = plan(s, 4, 1, d, true);
  BOOST_REQUIRE(p.ok());
  const SegmentPlan& segment = p->bundles[3].segments[0];
  BOOST_TEST(segment.together);
  BOOST_TEST(segment.updates.count == kCount / 4);
  BOOST_TEST((segment.full.home == Home::kOpen));
  BOOST_TEST((segment.state[1].home == Home::kCommon));
  BOOST_TEST(p->open_bytes == kSize);
  BOOST_TEST(p->common_bytes == 2 * kSize);
  BOOST_TEST(p->by_owner[static_cast<size_t>(Owner::kState)] == 2 * kSize / 4);
  BOOST_TEST(p->total_bytes() == p->arena_bytes + kSize + 2 * kSize / 4);

  d.gather = ALQ_GATHER_COPY;
  BOOST_TEST(!plan(s, 4, 1, d, true)->reaches_peers());
  d.gather = ALQ_GATHER_AUTO;
  BOOST_TEST(!plan(s, 4, 1, d, false)->reaches_peers());
  BOOST_TEST(!plan(s, 1, 1, d, true)->reaches_peers());
  d.memory = ALQ_MEMORY_SLAB;
  BOOST_TEST(!plan(s, 4, 1, d, true)->reaches_peers());
  d.memory = ALQ_MEMORY_LEND;
  s.optimizers[0].desc.kind = ALQ_OPTIM_NONE;
  BOOST_TEST(!plan(s, 4, 1, d, true)->reaches_peers());
}

BOOST_AUTO_TEST_CASE(a_plan_over_its_cap_names_ways_to_fit) {
  Setup s = uniform(12, 1 << 16, ALQ_F32);
  alq_plan_desc d = strategy(ALQ_STRATEGY_DDP);
  Result<Plan> p = plan(s, 4, 1, d);
  BOOST_REQUIRE(p.ok());
  p->desc.cap_bytes = p->total_bytes() / 2;
  PlanInputs in{&s.model, &s.config, &s.optimizers, 4, 1, 0, 0, false};
  Status refused = over_cap(in, *p);
  BOOST_TEST(refused.code() == ALQ_RESOURCE_EXHAUSTED);
  BOOST_TEST(refused.message().find("strategy") != std::string::npos);
  p->desc.cap_bytes = 1000;
  BOOST_TEST(over_cap(in, *p).message().find("No other placement") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(contradictions_are_refused) {
  Setup s = uniform(2, 64, ALQ_F32);
  alq_plan_desc d = strategy(ALQ_STRATEGY_SINGLE);
  BOOST_TEST(plan(s, 4, 1, d).status().code() == ALQ_INVALID_ARGUMENT);
  d = strategy(ALQ_STRATEGY_FSDP);
  d.gather = ALQ_GATHER_MAP;
  BOOST_TEST(plan(s, 4, 1, d).status().code() == ALQ_INVALID_ARGUMENT);
  d = strategy(ALQ_STRATEGY_DDP);
  d.microbatches = 4;
  d.nesting = "3x2";
  BOOST_TEST(plan(s, 4, 1, d).status().code() == ALQ_INVALID_ARGUMENT);
}

BOOST_AUTO_TEST_CASE(a_thousand_units_of_a_thousand_parameters_plan_quickly) {
  Setup s;
  s.optimizers[0].desc = adamw();
  for (int32_t u = 0; u < 1000; ++u) {
    Unit unit{"u", {}, false, {}};
    for (int32_t i = 0; i < 1000; ++i) {
      Param p;
      p.count = 64;
      p.shape = {64};
      p.trainable = true;
      p.units = {u};
      unit.params.push_back(static_cast<int32_t>(s.model.params.size()));
      s.model.params.push_back(p);
    }
    s.model.units.push_back(unit);
  }
  Result<Plan> p = plan(s, 64, 1, strategy(ALQ_STRATEGY_FSDP));
  BOOST_REQUIRE(p.ok());
  // 1,000 elements of each unit, cut at multiples of 16.
  BOOST_TEST(p->by_owner[static_cast<size_t>(Owner::kParam)] ==
             1000 * 1008 * 4);
}

}  // namespace
}  // namespace aliquot::engine
