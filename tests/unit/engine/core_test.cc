// The core on the sequences that autograd really produces.
#include <boost/test/unit_test.hpp>

#include "core_fixture.h"

namespace aliquot::engine {
namespace {

constexpr int32_t kF = ALQ_PASS_F, kNoGrad = ALQ_PASS_F_NOGRAD, kR = ALQ_PASS_R,
                  kB = ALQ_PASS_B;

// Plays "F0 )0 B0 g0 R0 ]0": begin forward, end forward, begin backward,
// gradient ready, begin recompute, end recompute; returns all actions.
std::string play(Core& core, const std::string& script) {
  std::string out;
  for (size_t i = 0; i < script.size(); i += 3) {
    char what = script[i];
    int32_t u = script[i + 1] - '0';
    CoreError e;
    switch (what) {
      case 'F': e = core.unit_begin(u, kF, true); break;
      case 'N': e = core.unit_begin(u, kNoGrad, true); break;
      case 'R': e = core.unit_begin(u, kR, true); break;
      case 'B': e = core.unit_begin(u, kB, true); break;
      case ')': e = core.unit_end(u, kF); break;
      case '>': e = core.unit_end(u, kNoGrad); break;
      case ']': e = core.unit_end(u, kR); break;
      case '}': e = core.unit_end(u, kB); break;
      case 'g': e = core.grad_ready(u); break;
    }
    BOOST_REQUIRE_MESSAGE(
        e.ok(), script << " at " << i << ": code " << static_cast<int>(e.code));
    std::string actions = spell(core);
    if (!actions.empty()) out += (out.empty() ? "" : " | ") + actions;
  }
  return out;
}

std::string microbatch(Core& core, const std::string& script) {
  BOOST_REQUIRE(core.microbatch_begin(ALQ_TRAIN).ok());
  std::string out = spell(core);
  std::string played = play(core, script);
  if (!out.empty() && !played.empty()) out += " | ";
  out += played;
  BOOST_REQUIRE(core.microbatch_end().ok());
  std::string end = spell(core);
  BOOST_TEST(core.needed() == 0);
  return end.empty() ? out : out + " || " + end;
}

constexpr const char* kPlain = "F0 )0 F1 )1 F2 )2 B2 g2 B1 g1 B0 g0 ";

BOOST_AUTO_TEST_CASE(the_first_step_gathers_on_demand) {
  Core core(shape_of({}));
  // Two slots: 0 and 2 share one.  1 and 2 are still there at the turn.
  BOOST_TEST(microbatch(core, kPlain) ==
             "G0 W0 | G1 W1 | E0 G2 W2 | W2 O2 | R2 | W1 O1 | R1 | E2 G0 W0 O0 "
             "| R0");
}

BOOST_AUTO_TEST_CASE(later_steps_prefetch_in_the_recorded_order) {
  Core core(shape_of({}));
  microbatch(core, kPlain);
  BOOST_REQUIRE(core.step().ok());
  // Same gathers as before, but each is issued one unit ahead.
  BOOST_TEST(microbatch(core, kPlain) ==
             "P0 | W0 P1 | W1 E0 P2 | W2 | W2 O2 | R2 E2 P0 | W1 O1 | R1 | W0 "
             "O0 | R0");
  BOOST_TEST(core.repairs() == 0);
  BOOST_TEST(core.gathers() == 8);
}

BOOST_AUTO_TEST_CASE(nothing_is_gathered_without_sharded_parameters) {
  Core core(shape_of({.gathers = false}));
  BOOST_TEST(microbatch(core, kPlain) ==
             "W0 | W1 | W2 | W2 O2 | R2 | W1 O1 | R1 | W0 O0 | R0");
}

BOOST_AUTO_TEST_CASE(non_reentrant_checkpointing_never_ends_its_recompute) {
  Core core(shape_of({}));
  const char* script = "F0 )0 F1 )1 F2 )2 B2 R2 g2 B1 R1 g1 B0 R0 g0 ";
  BOOST_TEST(
      microbatch(core, script) ==
      "G0 W0 | G1 W1 | E0 G2 W2 | W2 O2 | W2 | R2 | W1 O1 | W1 | R1 | E2 "
      "G0 W0 O0 | W0 | R0");
}

BOOST_AUTO_TEST_CASE(reentrant_checkpointing_recomputes_before_backward) {
  Core core(shape_of({}));
  const char* script = "F0 )0 F1 )1 F2 )2 R2 ]2 B2 g2 R1 ]1 B1 g1 R0 ]0 B0 g0 ";
  BOOST_TEST(
      microbatch(core, script) ==
      "G0 W0 | G1 W1 | E0 G2 W2 | W2 | W2 O2 | R2 | W1 | W1 O1 | R1 | E2 "
      "G0 W0 | W0 O0 | R0");
}

BOOST_AUTO_TEST_CASE(a_checkpoint_over_three_units_needs_three_open) {
  const char* script = "F0 )0 F1 )1 F2 )2 B2 R0 ]0 R1 ]1 R2 g2 B1 g1 B0 g0 ";
  Core two(shape_of({}));
  BOOST_REQUIRE(two.microbatch_begin(ALQ_TRAIN).ok());
  play(two, "F0 )0 F1 )1 F2 )2 B2 ");
  CoreError e = two.unit_begin(0, kR, true);
  BOOST_TEST(static_cast<int>(e.code) == static_cast<int>(CoreCode::kSlotBusy));
  BOOST_TEST(e.other == 2);
  BOOST_TEST(spell(two).empty());

  Core three(shape_of({.slots = 3}));
  BOOST_TEST(microbatch(three, script) ==
             "G0 W0 | G1 W1 | G2 W2 | W2 O2 | W0 | W1 | W2 | R2 | W1 O1 | R1 | "
             "W0 O0 | R0");
}

BOOST_AUTO_TEST_CASE(two_forwards_and_one_backward_reduce_once) {
  Core core(shape_of({.slots = 3}));
  const char* script =
      "F0 )0 F1 )1 F2 )2 F0 )0 F1 )1 F2 )2 B2 B1 B0 B2 g2 B1 g1 B0 g0 ";
  BOOST_TEST(
      microbatch(core, script) ==
      "G0 W0 | G1 W1 | G2 W2 | W0 | W1 | W2 | W2 O2 | W1 O1 | W0 O0 | W2 "
      "| R2 | W1 | R1 | W0 | R0");
}

BOOST_AUTO_TEST_CASE(a_second_lend_in_one_window_adds) {
  Core core(shape_of({.slots = 3}));
  BOOST_REQUIRE(core.microbatch_begin(ALQ_TRAIN).ok());
  play(core, "F2 )2 B2 ");
  BOOST_TEST(!core.grad_lent_before(2));
  play(core, "B2 ");
  BOOST_TEST(core.grad_lent_before(2));
}

BOOST_AUTO_TEST_CASE(frozen_units_have_no_gradient_and_maybe_no_backward) {
  Core core(shape_of({.frozen = {0, 2}}));
  BOOST_TEST(microbatch(core, "F0 )0 F1 )1 F2 )2 B2 B1 g1 ") ==
             "G0 W0 | G1 W1 | E0 G2 W2 | W2 | W1 O1 | R1");
}

BOOST_AUTO_TEST_CASE(an_unused_output_has_more_forwards_than_backwards) {
  Core core(shape_of({}));
  BOOST_TEST(microbatch(core, "F0 )0 F1 )1 F2 )2 F0 )0 B2 g2 B1 g1 B0 g0 ") ==
             "G0 W0 | G1 W1 | E0 G2 W2 | E2 G0 W0 | E0 G2 W2 O2 | R2 | W1 O1 | "
             "R1 | E2 G0 W0 O0 | R0");
}

BOOST_AUTO_TEST_CASE(missing_gradients_become_zeros_of_fixed_order) {
  Core core(shape_of({}));
  BOOST_TEST(microbatch(core, "F0 )0 F1 )1 F2 )2 B2 g2 ") ==
             "G0 W0 | G1 W1 | E0 G2 W2 | W2 O2 | R2 || O1 Z1 R1 O0 Z0 R0");
}

BOOST_AUTO_TEST_CASE(no_grad_passes_and_eval_have_a_trace_of_their_own) {
  Core core(shape_of({}));
  microbatch(core, kPlain);
  BOOST_REQUIRE(core.microbatch_begin(ALQ_EVAL).ok());
  BOOST_TEST(static_cast<int>(core.unit_begin(0, kF, true).code) ==
             static_cast<int>(CoreCode::kBadPass));
  play(core, "N0 >0 N1 >1 N2 >2 ");
  BOOST_REQUIRE(core.microbatch_end().ok());
  BOOST_TEST(spell(core).empty());
  BOOST_REQUIRE(core.step().ok());
  int64_t before = core.repairs();
  microbatch(core, kPlain);
  BOOST_TEST(core.repairs() == before);
}

BOOST_AUTO_TEST_CASE(a_changed_order_repairs_itself) {
  Core core(shape_of({.units = 4}));
  const char* in_order = "F0 )0 F1 )1 F2 )2 F3 )3 B3 g3 B2 g2 B1 g1 B0 g0 ";
  const char* skipping = "F0 )0 F2 )2 F3 )3 B3 g3 B2 g2 B0 g0 ";
  microbatch(core, in_order);
  BOOST_REQUIRE(core.step().ok());
  microbatch(core, skipping);
  BOOST_TEST(core.repairs() > 0);
  BOOST_REQUIRE(core.step().ok());
  int64_t repairs = core.repairs();
  microbatch(core, skipping);
  BOOST_TEST(core.repairs() == repairs);
}

BOOST_AUTO_TEST_CASE(holding_all_needs_a_slot_for_each) {
  Core few(shape_of({}));
  BOOST_TEST(few.hold(0).ok());
  BOOST_TEST(few.hold(1).ok());
  BOOST_TEST(!few.hold(2).ok());
  Core enough(shape_of({.slots = 3}));
  for (int32_t u = 0; u < 3; ++u) BOOST_TEST(enough.hold(u).ok());
  BOOST_TEST(spell(enough) == "G0 W0 G1 W1 G2 W2");
  BOOST_TEST(static_cast<int>(enough.step().code) ==
             static_cast<int>(CoreCode::kStillHeld));
  BOOST_REQUIRE(enough.microbatch_begin(ALQ_EVAL).ok());
  // Any number of passes: no rank has to follow another.
  BOOST_TEST(play(enough, "N0 >0 N1 >1 N1 >1 N2 >2 ") == "W0 | W1 | W1 | W2");
  BOOST_REQUIRE(enough.microbatch_end().ok());
  for (int32_t u = 0; u < 3; ++u) BOOST_TEST(enough.unhold(u).ok());
  BOOST_TEST(!enough.unhold(0).ok());
}

BOOST_AUTO_TEST_CASE(misuse_is_refused_and_changes_nothing) {
  Core core(shape_of({}));
  auto code = [](CoreError e) { return static_cast<int>(e.code); };
  auto is = [](CoreCode c) { return static_cast<int>(c); };
  BOOST_TEST(code(core.unit_begin(0, kF, true)) ==
             is(CoreCode::kNotInMicrobatch));
  BOOST_TEST(code(core.grad_ready(0)) == is(CoreCode::kNotInMicrobatch));
  BOOST_REQUIRE(core.microbatch_begin(ALQ_TRAIN).ok());
  BOOST_TEST(code(core.microbatch_begin(ALQ_TRAIN)) ==
             is(CoreCode::kInMicrobatch));
  BOOST_TEST(code(core.step()) == is(CoreCode::kInMicrobatch));
  BOOST_TEST(code(core.unit_end(0, kF)) == is(CoreCode::kNotOpen));
  BOOST_TEST(code(core.grad_ready(0)) == is(CoreCode::kNoGradWindow));
  play(core, "F0 )0 B0 g0 ");
  BOOST_TEST(code(core.grad_ready(0)) == is(CoreCode::kAlreadyReady));
  BOOST_REQUIRE(core.microbatch_end().ok());
  BOOST_REQUIRE(core.microbatch_end().ok());
}

// A rank without data gets the same calls, gradients apart, and so takes the
// same actions, in the same order.
BOOST_AUTO_TEST_CASE(a_rank_without_gradients_acts_as_the_others) {
  for (int32_t prefetch : {0, 1, 2}) {
    Core with(shape_of({.units = 4, .prefetch = prefetch}));
    Core without(shape_of({.units = 4, .prefetch = prefetch}));
    for (int m = 0; m < 3; ++m) {
      auto both = [&](auto call) {
        BOOST_REQUIRE(call(with).ok());
        BOOST_REQUIRE(call(without).ok());
        BOOST_TEST(spell(with) == spell(without));
      };
      both([](Core& c) { return c.microbatch_begin(ALQ_TRAIN); });
      for (int32_t u = 0; u < 4; ++u) {
        both([&](Core& c) { return c.unit_begin(u, kF, true); });
        both([&](Core& c) { return c.unit_end(u, kF); });
      }
      for (int32_t u = 4; u-- > 1;) {
        both([&](Core& c) { return c.unit_begin(u, kB, true); });
        BOOST_REQUIRE(with.grad_ready(u).ok());
        BOOST_TEST(with.reduces() == u);
        BOOST_REQUIRE(without.grads_missing(u).ok());
        BOOST_TEST("Z" + std::to_string(u) + " " + spell(with) ==
                   spell(without));
        both([&](Core& c) { return c.unit_end(u, kB); });
      }
      both([](Core& c) { return c.microbatch_end(); });
      both([](Core& c) { return c.step(); });
    }
  }
}

BOOST_AUTO_TEST_CASE(missing_gradients_are_given_once_and_in_training) {
  Core core(shape_of({.frozen = {1}}));
  BOOST_TEST((core.grads_missing(0).code == CoreCode::kNotInMicrobatch));
  BOOST_REQUIRE(core.microbatch_begin(ALQ_EVAL).ok());
  BOOST_TEST((core.grads_missing(0).code == CoreCode::kNotInMicrobatch));
  BOOST_REQUIRE(core.microbatch_end().ok());
  BOOST_REQUIRE(core.microbatch_begin(ALQ_TRAIN).ok());
  spell(core);
  BOOST_REQUIRE(core.grads_missing(0).ok());
  BOOST_TEST(spell(core) == "O0 Z0 R0");
  BOOST_TEST((core.grads_missing(0).code == CoreCode::kAlreadyReady));
  BOOST_TEST((core.grads_missing(1).code == CoreCode::kNotTrainable));
  BOOST_REQUIRE(core.unit_begin(0, kB, true).ok());
  BOOST_REQUIRE(core.microbatch_end().ok());
}

}  // namespace
}  // namespace aliquot::engine
