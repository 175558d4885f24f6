// Placements: masks and what they mean on a mesh; plans of units that are
// placed by themselves and of states over both axes.
#include "engine/placement.h"

#include <boost/test/unit_test.hpp>

#include "plan_fixture.h"

namespace aliquot::engine {

std::ostream& operator<<(std::ostream& out, Extent extent) {
  return out << extent_name(extent);
}

namespace {

constexpr uint32_t kS = ALQ_AXIS_DP_SHARD, kR = ALQ_AXIS_DP_REPLICATE;
constexpr uint32_t kBoth = kS | kR;

alq_plan_desc custom(uint32_t params, uint32_t grads, uint32_t states) {
  alq_plan_desc d = strategy(ALQ_STRATEGY_CUSTOM);
  d.param_axes = params;
  d.grad_axes = grads;
  d.state_axes = states;
  return d;
}

alq_status refusal(const AxisMasks& masks, const AxisUse& axes) {
  return placement_of(masks, axes).status().code();
}

BOOST_AUTO_TEST_CASE(masks_name_axes_of_the_mesh) {
  AxisUse two{4, 2, true}, flat{4, 2, false};
  Result<Placement> p = placement_of({0, kS, kBoth}, two);
  BOOST_REQUIRE(p.ok());
  BOOST_TEST(p->params == Extent::kWhole);
  BOOST_TEST(p->grads == Extent::kShard);
  BOOST_TEST(p->states == Extent::kPart);
  BOOST_TEST(refusal({0, 0, kR}, two) == ALQ_UNSUPPORTED);
  BOOST_TEST(refusal({0, 0, 4}, two) == ALQ_INVALID_ARGUMENT);
  BOOST_TEST(refusal({kS, 0, kS}, two) == ALQ_UNSUPPORTED);
  BOOST_TEST(refusal({0, kBoth, kS}, two) == ALQ_UNSUPPORTED);
  // Flattened, both axes are one.
  BOOST_TEST(placement_of({0, 0, kBoth}, flat)->states == Extent::kShard);
  BOOST_TEST(refusal({0, 0, kS}, flat) == ALQ_INVALID_ARGUMENT);
  BOOST_TEST(refusal({0, 0, kR}, flat) == ALQ_INVALID_ARGUMENT);
}

BOOST_AUTO_TEST_CASE(an_axis_of_one_rank_does_not_matter) {
  for (bool two : {false, true}) {
    AxisUse shards{4, 1, two}, one{1, 1, two};
    for (uint32_t mask : {kS, kBoth}) {
      BOOST_TEST(placement_of({0, 0, mask}, shards)->states == Extent::kShard);
      BOOST_TEST(placement_of({0, 0, mask}, one)->states == Extent::kWhole);
    }
    BOOST_TEST(placement_of({0, 0, kR}, shards)->states == Extent::kWhole);
  }
  AxisUse replicas{1, 4, true};
  BOOST_TEST(placement_of({0, 0, kS}, replicas)->states == Extent::kWhole);
  BOOST_TEST(placement_of({0, 0, kR}, replicas)->states == Extent::kPart);
  BOOST_TEST(placement_of({0, 0, kBoth}, replicas)->states == Extent::kPart);
}

BOOST_AUTO_TEST_CASE(states_over_both_axes_take_their_product_less) {
  constexpr int64_t kCount = 1 << 14, kUnits = 6, kSize = kUnits * kCount * 4;
  Setup s = uniform(kUnits, kCount, ALQ_F32);
  alq_plan_desc d = custom(kS, kS, kBoth);
  Result<Plan> p = plan(s, 4, 2, d);
  BOOST_REQUIRE(p.ok());
  BOOST_TEST(owned_by(*p, Owner::kParam) == kSize / 4);
  BOOST_TEST(owned_by(*p, Owner::kState) == 2 * kSize / 8);
  BOOST_TEST(owned_by(*p, Owner::kAccum) == kSize / 4);
  BOOST_TEST(owned_by(*p, Owner::kStaging) == 0);
  // A reduce-scatter over each axis; FSDP's gathers, less the two units that
  // stay at the turn, and once the updated parts of the shard.
  BOOST_TEST(p->reduce_bytes == kSize * 3 / 4 + kSize / 4 / 2);
  BOOST_TEST(p->gather_bytes ==
             (2 * kSize - 2 * kCount * 4) * 3 / 4 + kSize / 4 / 2);

  p = plan(s, 4, 2, custom(kBoth, kBoth, kBoth));
  BOOST_REQUIRE(p.ok());
  BOOST_TEST(owned_by(*p, Owner::kParam) == kSize / 8);
  BOOST_TEST(owned_by(*p, Owner::kAccum) == kSize / 8);
  BOOST_TEST(owned_by(*p, Owner::kStaging) == kCount * 4 / 4);
  BOOST_TEST(p->gather_bytes == (2 * kSize - 2 * kCount * 4) * 7 / 8);

  // Sums that outlive a microbatch are of the shard: replicas come last.
  d = custom(kBoth, kBoth, kBoth);
  d.microbatches = 2;
  p = plan(s, 4, 2, d);
  BOOST_REQUIRE(p.ok());
  BOOST_TEST(owned_by(*p, Owner::kAccum) == kSize / 4);
  BOOST_TEST(p->reduce_bytes == 2 * kSize * 3 / 4 + kSize / 4 / 2);
}

BOOST_AUTO_TEST_CASE(a_unit_may_stay_whole_among_sharded_ones) {
  constexpr int64_t kCount = 4096, kSize = kCount * 4;
  Setup s = uniform(5, kCount, ALQ_F32);
  s.model.units[0].place = AxisMasks{0, 0, 0};
  s.model.units[4].place = AxisMasks{0, 0, kS};
  Result<Plan> p = plan(s, 4, 1, strategy(ALQ_STRATEGY_FSDP), true);
  BOOST_REQUIRE(p.ok());
  BOOST_TEST(p->maps());
  // Mapped shards, and the states of the unit that is whole.
  BOOST_TEST(p->common_bytes == (3 + 2) * kSize);
  BOOST_TEST(owned_by(*p, Owner::kParam) == 2 * kSize + 3 * kSize / 4);
  BOOST_TEST(owned_by(*p, Owner::kState) == 2 * 5 * kSize / 4);
  BOOST_TEST(p->gather_bytes == kSize * 3 / 4);
  BOOST_TEST(p->reduce_bytes == (2 + 3 + 1) * kSize * 3 / 4);
  BOOST_TEST(!p->bundles[0].gathers);
  BOOST_TEST((p->bundles[1].map && !p->bundles[1].gathers));
  BOOST_TEST((!p->bundles[4].map && p->bundles[4].gathers));
  std::string text = plan_text(*p, s.model);
  BOOST_TEST(text.find("gather map and copy") != std::string::npos);
  BOOST_TEST(text.find("unit u0: parameters whole, gradients whole, states "
                       "whole") != std::string::npos);
  BOOST_TEST(text.find("unit u1:") == std::string::npos);
}

BOOST_AUTO_TEST_CASE(tied_units_must_be_placed_alike) {
  Setup s = uniform(2, 64, ALQ_F32);
  s.model.params[0].units = {0, 1};
  s.model.units[1].params = {0, 1};
  s.model.units[0].place = AxisMasks{0, 0, kS};
  Status refused = plan(s, 2, 1, strategy(ALQ_STRATEGY_FSDP)).status();
  BOOST_TEST(refused.code() == ALQ_INVALID_ARGUMENT);
  for (const char* name : {"\"p0\"", "\"u0\"", "\"u1\""}) {
    BOOST_TEST(refused.message().find(name) != std::string::npos);
  }
  BOOST_TEST(plan(s, 2, 1, strategy(ALQ_STRATEGY_ZERO1)).ok());
}

BOOST_AUTO_TEST_CASE(a_refused_mask_names_its_unit) {
  Setup s = uniform(2, 64, ALQ_F32);
  s.model.units[1].place = AxisMasks{0, 0, kR};
  Status refused = plan(s, 2, 2, strategy(ALQ_STRATEGY_HSDP)).status();
  BOOST_TEST(refused.code() == ALQ_UNSUPPORTED);
  BOOST_TEST(refused.message().find("unit \"u1\"") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(only_shards_can_be_mapped) {
  Setup s = uniform(2, 64, ALQ_F32);
  alq_plan_desc d = custom(kBoth, kBoth, kBoth);
  BOOST_TEST(!plan(s, 2, 2, d, true)->maps());
  d.gather = ALQ_GATHER_MAP;
  BOOST_TEST(plan(s, 2, 2, d, true).status().code() == ALQ_INVALID_ARGUMENT);
  d.param_axes = kS;
  BOOST_TEST(plan(s, 2, 2, d, true)->maps());
}

BOOST_AUTO_TEST_CASE(whole_gradients_may_be_reduced_in_each_microbatch) {
  constexpr int64_t kSize = 4096 * 4;
  Setup s = uniform(2, 4096, ALQ_F32);
  alq_plan_desc d = strategy(ALQ_STRATEGY_DDP);
  d.microbatches = 3;
  d.defer = ALQ_DEFER_EACH;
  Result<Plan> p = plan(s, 4, 1, d);
  BOOST_REQUIRE(p.ok());
  BOOST_TEST(p->reduce_bytes == 3 * 2 * 2 * kSize * 3 / 4);
  BOOST_TEST(owned_by(*p, Owner::kStaging) == kSize);
}

BOOST_AUTO_TEST_CASE(a_cap_on_two_axes_offers_states_over_both) {
  Setup s = uniform(12, 1 << 14, ALQ_F32);
  alq_plan_desc d = strategy(ALQ_STRATEGY_HSDP);
  Result<Plan> p = plan(s, 2, 4, d);
  BOOST_REQUIRE(p.ok());
  Result<Plan> better = plan(s, 2, 4, custom(kS, kS, kBoth));
  BOOST_REQUIRE(better.ok());
  p->desc.cap_bytes = better->total_bytes();
  // As the last rank: its shard must exist in every alternative.
  PlanInputs in{&s.model, &s.config, &s.optimizers, 2, 4, 1, 3, false};
  Status refused = over_cap(in, *p);
  BOOST_TEST(refused.message().find("states over both") != std::string::npos);
  Result<Plan> least = plan(s, 2, 4, strategy(ALQ_STRATEGY_FSDP));
  BOOST_REQUIRE(least.ok());
  p->desc.cap_bytes = least->total_bytes();
  refused = over_cap(in, *p);
  BOOST_TEST(refused.message().find("strategy fsdp") != std::string::npos);
}

}  // namespace
}  // namespace aliquot::engine
