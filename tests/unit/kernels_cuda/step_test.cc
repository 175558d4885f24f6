// The step's decision and the clock: one thread works, the others keep out.
#include "launch.h"

namespace aliquot::kernels {
namespace {

constexpr int kRanks = 3;

struct State {
  StepShare shares[kRanks] = {};
  StepFactors factors[2] = {};
  StepCounters counters = {4, 8};
  StepScalars scalars = {};
  StepResult result[2] = {};
  NormBins counted = {};
  BadSource bad[2];
  int32_t world[2] = {4, 9};
};

// Everything of a step but the all-gather; run(op, args).
template <typename Run>
void step(State* s, int64_t bad_element, const Run& run) {
  s->factors[0].beta1 = 0.9;
  s->factors[0].beta2 = 0.999;
  const double data[] = {3, 4, 1e-3};
  run(OpCode::kRates, RatesArgs{s->factors, 0, 2, {0.5, 1}, {0.25, 0}});
  for (StepShare& share : s->shares) {
    s->counters.serial = 8;
    s->bad[1].element = bad_element;
    run(OpCode::kNorm, NormArgs{&s->counted, data, 3, ALQ_F64, 0, 40});
    run(OpCode::kShare, ShareArgs{&share, &s->counters, &s->counted, s->bad,
                                  s->world, 1.5, 77, 2, 7, 1, 0, nullptr});
  }
  run(OpCode::kDecide, DecideArgs{s->shares, kRanks, &s->scalars, s->factors,
                                  &s->counters, s->result, 2.0, 1.0, 2, 0});
}

template <typename T>
bool same(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

BOOST_AUTO_TEST_CASE(step_is_decided_as_on_the_cpu) {
  for (int64_t bad_element : {-1, 30}) {
    State expected;
    step(&expected, bad_element,
         [](OpCode op, const auto& args) { run_cpu(op, &args); });
    for_each_grid([&](Grid grid) {
      State got;
      step(&got, bad_element,
           [&](OpCode op, const auto& args) { run_cuda(op, args, grid); });
      BOOST_TEST(same(got.shares, expected.shares));
      BOOST_TEST(same(got.factors, expected.factors));
      BOOST_TEST(same(got.counters, expected.counters));
      BOOST_TEST(same(got.scalars, expected.scalars));
      BOOST_TEST(same(got.counted, expected.counted));
      BOOST_TEST(same(got.result[0], expected.result[0]));
      BOOST_TEST(same(got.result[1], expected.result[1]));
    });
    BOOST_TEST(
        (expected.result[0].outcome ==
         (bad_element < 0 ? StepOutcome::kTaken : StepOutcome::kSkipped)));
  }
}

BOOST_AUTO_TEST_CASE(stamp_reads_a_clock_that_goes_on) {
  int64_t first = 0, second = 0, ahead = 0;
  run_cuda(OpCode::kStamp, StampArgs{&first, 0});
  run_cuda(OpCode::kStamp, StampArgs{&second, 0});
  run_cuda(OpCode::kStamp, StampArgs{&ahead, 1000000000000});
  BOOST_TEST(first > 0);
  BOOST_TEST(second >= first);
  BOOST_TEST(ahead >= second + 1000000000000);
}

}  // namespace
}  // namespace aliquot::kernels
