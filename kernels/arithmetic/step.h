// The decision of a step, on any target: what one rank brings, and what all
// ranks make of it.  Every rank merges the same shares in the same order, so
// norm, clip factor and the decision to skip are the same bits everywhere.
// Cost: one thread, about 20 ns per rank and optimizer group, and two powers
// per group.
#pragma once

#include <cmath>

#include "kernels/arithmetic/norm_value.h"
#include "kernels/ops.h"

namespace aliquot::kernels {

ALQ_DEVICE inline bool step_finite(double x) { return x - x == 0; }

ALQ_DEVICE inline void step_rates(const RatesArgs& a) {
  for (int i = 0; i < a.count; ++i) {
    a.factors[a.first + i].lr = a.lr[i];
    a.factors[a.first + i].weight_decay = a.weight_decay[i];
  }
}

// The host raises the word at any time.
ALQ_DEVICE inline bool step_failed(const uint32_t* word) {
  if (word == nullptr) return false;
#ifdef __CUDA_ARCH__
  return *static_cast<const volatile uint32_t*>(word) != 0;
#else
  return __atomic_load_n(word, __ATOMIC_RELAXED) != 0;
#endif
}

ALQ_DEVICE inline void step_share(const ShareArgs& a) {
  StepShare* share = a.share;
  share->bins = a.use_counted != 0 ? *a.counted : NormBins{};
  *a.counted = NormBins{};
  share->weight = a.weight;
  share->bad_element = -1;
  share->bad_microbatch = share->bad_rank = -1;
  for (int m = 0; m < a.microbatches; ++m) {
    const BadSource bad = a.bad[m];
    a.bad[m].element = -1;
    a.bad[m].rank = -1;
    if (bad.element < 0 || share->bad_element >= 0) continue;
    share->bad_element = bad.element;
    share->bad_microbatch = m;
    share->bad_rank = bad.rank < 0 ? a.own_rank : a.ranks[bad.rank];
  }
  share->call = a.call;
  share->steps = a.counters->steps;
  const int64_t serial = ++a.counters->serial;
  share->serial = step_failed(a.failed) ? -serial : serial;
}

// Is the non-finite gradient of `a` before that of `b`?
ALQ_DEVICE inline bool step_bad_before(const StepShare& a,
                                       const StepResult& b) {
  if (b.bad_element < 0) return true;
  if (a.bad_microbatch != b.bad_microbatch) {
    return a.bad_microbatch < b.bad_microbatch;
  }
  if (a.bad_rank != b.bad_rank) return a.bad_rank < b.bad_rank;
  return a.bad_element < b.bad_element;
}

// Merges the shares; the outcome is kTaken unless it is decided already.
ALQ_DEVICE inline void step_merge(const DecideArgs& a, NormBins* bins,
                                  StepResult* out) {
  for (int64_t r = 0; r < a.n; ++r) {
    if (a.shares[r].serial != -a.counters->serial) continue;
    out->outcome = StepOutcome::kFailed;
    out->other = static_cast<int32_t>(r);
    return;
  }
  // Not the own serial: a gather that failed has left old shares.
  for (int64_t r = 0; r < a.n; ++r) {
    if (a.shares[r].serial == a.counters->serial) continue;
    out->outcome = StepOutcome::kDisagree;
    return;
  }
  out->outcome = StepOutcome::kTaken;
  for (int64_t r = 0; r < a.n; ++r) {
    const StepShare& share = a.shares[r];
    out->weight_sum += share.weight;
    if (share.call != a.shares[0].call || share.steps != a.shares[0].steps) {
      out->outcome = StepOutcome::kDisagree;
      out->other = static_cast<int32_t>(r);
      return;
    }
    bins_merge(bins, share.bins);
    if (share.bad_element < 0 || !step_bad_before(share, *out)) continue;
    out->bad_element = share.bad_element;
    out->bad_microbatch = share.bad_microbatch;
    out->bad_rank = share.bad_rank;
  }
}

ALQ_DEVICE inline void step_factors(StepFactors* f, int64_t steps) {
  const double t = static_cast<double>(steps + 1);
  f->decay = 1 - f->lr * f->weight_decay;
  f->step_size = f->lr / (1 - std::pow(f->beta1, t));
  f->inv_sqrt_bc2 = 1 / std::sqrt(1 - std::pow(f->beta2, t));
  f->first = steps == 0 ? 1 : 0;
}

// The outcome, and the factor of gradients if the step is taken.
ALQ_DEVICE inline double step_outcome(const DecideArgs& a, StepResult* out) {
  NormBins bins = {};
  step_merge(a, &bins, out);
  if (out->outcome != StepOutcome::kTaken) return 0;
  const double divisor = out->weight_sum * a.loss_scale;
  if (!(out->weight_sum > 0) || !step_finite(divisor) ||
      !step_finite(1 / divisor)) {
    out->outcome = StepOutcome::kWeights;
    return 0;
  }
  double scale = 1 / divisor;
  out->grad_norm = bins_root(bins) * scale;
  if (bins.nonfinite > 0 || out->bad_element >= 0) {
    // An overflow of the sum itself has no single contributor.
    if (out->bad_element < 0) out->bad_element = bins.first_bad;
    out->outcome = StepOutcome::kSkipped;
    return 0;
  }
  if (a.clip_norm > 0) {
    const double clip = a.clip_norm / (out->grad_norm + 1e-6);
    scale *= clip < 1.0 ? clip : 1.0;
  }
  return scale;
}

ALQ_DEVICE inline void step_decide(const DecideArgs& a) {
  StepResult out = {};
  out.bad_element = -1;
  out.bad_rank = out.bad_microbatch = out.other = -1;
  a.scalars->grad_scale = step_outcome(a, &out);
  const bool taken = out.outcome == StepOutcome::kTaken;
  a.scalars->skip = taken ? 0 : 1;
  if (taken) {
    for (int32_t g = 0; g < a.groups; ++g) {
      step_factors(&a.factors[g], a.counters->steps);
    }
    ++a.counters->steps;
  }
  out.steps = a.counters->steps;
  a.result[0] = out;
  const bool refused = out.outcome == StepOutcome::kDisagree ||
                       out.outcome == StepOutcome::kWeights ||
                       out.outcome == StepOutcome::kFailed;
  if (refused && a.result[1].outcome == StepOutcome::kNone) a.result[1] = out;
}

}  // namespace aliquot::kernels
