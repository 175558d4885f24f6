// The decision of a step: shares, outcomes, factors.
#include <cmath>
#include <limits>

#include "support.h"

namespace aliquot::kernels {
namespace {

struct Ranks {
  explicit Ranks(size_t n) : shares(n) {
    factors[0].beta1 = 0.9;
    factors[0].beta2 = 0.999;
  }

  void rates(double lr, double wd) {
    RatesArgs args = {factors, 0, 2, {lr, lr * 2}, {wd, 0}};
    run_cpu(OpCode::kRates, &args);
  }
  ShareArgs args_of(double weight, uint64_t call) {
    return {nullptr, &counters, &counted, bad, world, weight,
            call,    3,         7,        1,   0,     &failed};
  }
  // All ranks' shares, with one serial.
  void share(double weight, uint64_t call) {
    int64_t serial = counters.serial;
    for (StepShare& s : shares) {
      counters.serial = serial;
      ShareArgs args = args_of(weight, call);
      args.share = &s;
      run_cpu(OpCode::kShare, &args);
    }
  }
  void add(size_t rank, double value) {
    NormArgs args = {&shares[rank].bins, &value, 1, ALQ_F64, 0, 40};
    run_cpu(OpCode::kNorm, &args);
  }
  const StepResult& decide(double clip = 0) {
    DecideArgs args = {shares.data(),
                       static_cast<int64_t>(shares.size()),
                       &scalars,
                       factors,
                       &counters,
                       result,
                       2.0,
                       clip,
                       2,
                       0};
    run_cpu(OpCode::kDecide, &args);
    return result[0];
  }

  std::vector<StepShare> shares;
  StepFactors factors[2] = {};
  StepCounters counters = {};
  StepScalars scalars = {};
  StepResult result[2] = {};
  NormBins counted = {};
  BadSource bad[3];
  int32_t world[2] = {4, 9};
  uint32_t failed = 0;
};

BOOST_AUTO_TEST_CASE(step_taken_has_factors_and_counts) {
  Ranks ranks(3);
  ranks.rates(0.5, 0.25);
  for (int64_t t = 1; t <= 3; ++t) {
    double three = 3;
    NormArgs way = {&ranks.counted, &three, 1, ALQ_F64, 0, 0};
    run_cpu(OpCode::kNorm, &way);  // of the first rank that shares
    ranks.share(1.5, 11);
    BOOST_TEST(ranks.counted.top == 0);
    ranks.add(2, 4);
    const StepResult& r = ranks.decide();
    BOOST_TEST((r.outcome == StepOutcome::kTaken));
    BOOST_TEST(r.steps == t);
    BOOST_TEST(ranks.counters.serial == t);
    BOOST_TEST(r.weight_sum == 4.5);
    BOOST_TEST(r.grad_norm == 5 * (1 / 9.0));
    BOOST_TEST(ranks.scalars.grad_scale == 1 / 9.0);
    BOOST_TEST(ranks.scalars.skip == 0);
    const StepFactors& f = ranks.factors[0];
    const double n = static_cast<double>(t);
    BOOST_TEST(f.decay == 1 - 0.5 * 0.25);
    BOOST_TEST(f.step_size == 0.5 / (1 - std::pow(0.9, n)));
    BOOST_TEST(f.inv_sqrt_bc2 == 1 / std::sqrt(1 - std::pow(0.999, n)));
    BOOST_TEST(f.first == (t == 1 ? 1 : 0));
    BOOST_TEST(ranks.factors[1].lr == 1.0);
    BOOST_TEST(ranks.factors[1].first == f.first);
  }
}

BOOST_AUTO_TEST_CASE(step_clips_to_the_norm) {
  Ranks ranks(1);
  ranks.share(0.5, 1);
  ranks.add(0, 3);
  ranks.add(0, 4);
  const StepResult& r = ranks.decide(2.0);
  BOOST_TEST(r.grad_norm == 5);
  BOOST_TEST(ranks.scalars.grad_scale == 2.0 / (5 + 1e-6));
  ranks.share(0.5, 1);
  ranks.add(0, 3);
  ranks.decide(8.0);
  BOOST_TEST(ranks.scalars.grad_scale == 1);
}

BOOST_AUTO_TEST_CASE(step_is_skipped_for_the_first_bad_gradient) {
  Ranks ranks(2);
  ranks.bad[1].element = 30;  // found by the sum: from rank 1 of the group
  ranks.bad[1].rank = 1;
  ranks.bad[2].element = 3;
  ranks.share(1, 1);
  BOOST_TEST(ranks.shares[0].bad_element == 30);
  BOOST_TEST(ranks.shares[0].bad_rank == 9);
  BOOST_TEST(ranks.shares[1].bad_element == -1);  // cleared by the first
  ranks.shares[1].bad_element = 50;
  ranks.shares[1].bad_microbatch = 1;
  ranks.shares[1].bad_rank = 7;
  const StepResult& r = ranks.decide();
  BOOST_TEST((r.outcome == StepOutcome::kSkipped));
  BOOST_TEST(r.bad_element == 50);
  BOOST_TEST(r.bad_rank == 7);
  BOOST_TEST(r.bad_microbatch == 1);
  BOOST_TEST(r.steps == 0);
  BOOST_TEST(ranks.scalars.skip == 1);
  BOOST_TEST((ranks.result[1].outcome == StepOutcome::kNone));
  // An infinite sum of finite contributions.
  ranks.share(1, 1);
  ranks.add(1, std::numeric_limits<double>::infinity());
  ranks.decide();
  BOOST_TEST((ranks.result[0].outcome == StepOutcome::kSkipped));
  BOOST_TEST(ranks.result[0].bad_element == 40);
  BOOST_TEST(ranks.result[0].bad_rank == -1);
}

// A share of a rank whose communication failed, on all ranks.
BOOST_AUTO_TEST_CASE(step_is_refused_where_a_rank_failed) {
  Ranks ranks(3);
  ranks.share(1, 1);
  ranks.failed = 1;
  ShareArgs args = ranks.args_of(1, 2);  // another call as well
  args.share = &ranks.shares[1];
  ranks.counters.serial = 0;
  run_cpu(OpCode::kShare, &args);
  BOOST_TEST((ranks.decide().outcome == StepOutcome::kFailed));
  BOOST_TEST(ranks.result[0].other == 1);
  BOOST_TEST(ranks.result[0].steps == 0);
  BOOST_TEST(ranks.scalars.skip == 1);
  BOOST_TEST((ranks.result[1].outcome == StepOutcome::kFailed));
  ranks.failed = 0;
  ranks.share(1, 1);
  BOOST_TEST((ranks.decide().outcome == StepOutcome::kTaken));
}

BOOST_AUTO_TEST_CASE(step_is_refused_and_remembered) {
  Ranks ranks(3);
  ranks.share(1, 1);
  ranks.shares[1].call = 2;
  BOOST_TEST((ranks.decide().outcome == StepOutcome::kDisagree));
  BOOST_TEST(ranks.result[0].other == 1);
  BOOST_TEST(ranks.scalars.skip == 1);
  // The first is kept until it is taken away.
  ranks.share(0, 1);
  BOOST_TEST((ranks.decide().outcome == StepOutcome::kWeights));
  BOOST_TEST((ranks.result[1].outcome == StepOutcome::kDisagree));
  ranks.result[1] = {};
  ranks.share(1e308, 1);
  BOOST_TEST((ranks.decide().outcome == StepOutcome::kWeights));
  BOOST_TEST((ranks.result[1].outcome == StepOutcome::kWeights));
  // Shares that a failed gather left from the step before.
  StepShare old = ranks.shares[2];
  ranks.share(1e308, 1);
  ranks.shares[2] = old;
  BOOST_TEST((ranks.decide().outcome == StepOutcome::kDisagree));
  BOOST_TEST(ranks.result[0].other == -1);
  ranks.share(1, 1);
  BOOST_TEST((ranks.decide().outcome == StepOutcome::kTaken));
  BOOST_TEST(ranks.result[0].steps == 1);
}

}  // namespace
}  // namespace aliquot::kernels
