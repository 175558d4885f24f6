// The decision of a step: the operations that make it, and its outcome as the
// host reads it.  See step.cc for when.
#include <algorithm>
#include <utility>

#include "engine/engine.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace aliquot::engine {

Status Engine::gather_shares(Stream* stream) {
  constexpr int64_t kBytes = sizeof(kernels::StepShare);
  if (context_->faults.skips("engine.comm")) {
    for (int32_t r = 0; r < groups_.exchange->size(); ++r) {
      ALQ_TRY(launch(stream, kernels::OpCode::kCopy,
                     kernels::CopyArgs{step_memory_->all + r,
                                       step_memory_->mine, kBytes}));
    }
    return {};
  }
  Coll coll;
  coll.kind = CollKind::kAllGather;
  coll.src = step_memory_->mine;
  coll.dst = step_memory_->all;
  coll.count = kBytes;
  coll.dtype = ALQ_U8;
  coll.label = "step";
  return groups_.exchange->issue(coll, stream, nullptr);
}

// By value: a captured step keeps its rates.
Status Engine::set_rates(const alq_step_desc& desc, Stream* stream) {
  auto groups = static_cast<int32_t>(optimizers_.size());
  constexpr int32_t kMost = kernels::RatesArgs::kMost;
  for (int32_t first = 0; first < groups; first += kMost) {
    kernels::RatesArgs args = {};
    args.factors = step_memory_->factors;
    args.first = first;
    args.count = std::min(kMost, groups - first);
    for (int32_t i = 0; i < args.count; ++i) {
      args.lr[i] = desc.lr[first + i];
      if (desc.weight_decay == nullptr) continue;
      args.weight_decay[i] = desc.weight_decay[first + i];
    }
    ALQ_TRY(launch(stream, kernels::OpCode::kRates, args));
  }
  return {};
}

uint64_t Engine::hash_call(const alq_step_desc& desc) const {
  XXH64_hash_t hash = XXH3_64bits(&desc.clip_norm, sizeof(double));
  size_t bytes = optimizers_.size() * sizeof(double);
  hash = XXH3_64bits_withSeed(desc.lr, bytes, hash);
  if (desc.weight_decay == nullptr) return hash;
  return XXH3_64bits_withSeed(desc.weight_decay, bytes, hash);
}

// Forms and exchanges the shares and decides, on the stream.
Status Engine::decide(const alq_step_desc& desc, Stream* stream) {
  const StepMemory& m = *step_memory_;
  ALQ_TRY(set_rates(desc, stream));
  kernels::ShareArgs share = {};
  share.share = m.mine;
  share.counters = m.counters;
  share.counted = m.counted;
  share.bad = m.bad;
  share.ranks = m.reduce_ranks;
  share.weight = weight_sum_;
  share.call = hash_call(desc);
  share.microbatches = plan_.microbatches;
  share.own_rank = context_->rank;
  share.use_counted = grads_exposed_ ? 0 : 1;
  share.failed = reinterpret_cast<const uint32_t*>(m.failed);
  ALQ_TRY(launch(stream, kernels::OpCode::kShare, share));
  ALQ_TRY(local_norm(stream));
  ALQ_TRY(gather_shares(stream));
  gathered_since_sync_ = false;
  kernels::DecideArgs decide = {};
  decide.shares = m.all;
  decide.n = groups_.exchange->size();
  decide.scalars = m.scalars;
  decide.factors = m.factors;
  decide.counters = m.counters;
  decide.result = m.results;
  decide.loss_scale = config_.loss_scale;
  decide.clip_norm = desc.clip_norm;
  decide.groups = static_cast<int32_t>(optimizers_.size());
  return launch(stream, kernels::OpCode::kDecide, decide);
}

// The parameter that holds an element of the engine-wide numbering.
int32_t Engine::param_at(int64_t element) const {
  for (size_t i = 0; i < model_.params.size(); ++i) {
    const Param& p = model_.params[i];
    int64_t begin = executor_->element_base(p.bundle, p.segment) + p.offset;
    if (element >= begin && element < begin + p.count) {
      return static_cast<int32_t>(i);
    }
  }
  return -1;
}

// The step's outcome as an error or a report.
Status Engine::outcome(const kernels::StepResult& result,
                       alq_step_report* report) const {
  using kernels::StepOutcome;
  if (result.outcome == StepOutcome::kFailed) {
    for (const auto& group : groups_.all()) ALQ_TRY(group->status());
    int32_t rank = groups_.exchange->ranks()[static_cast<size_t>(result.other)];
    return make_error(ALQ_ABORTED,
                      "engine {}: communication of rank {} failed in a step, "
                      "which no rank has taken; its own error says why.  Leave "
                      "the step (alq_engine_abandon)",
                      name_, rank)
        .with_rank(rank);
  }
  if (result.outcome == StepOutcome::kDisagree) {
    if (result.other < 0) {  // the exchange failed: the group knows why
      ALQ_TRY(groups_.exchange->status());
      return make_error(ALQ_INTERNAL,
                        "engine {}: the ranks' exchange in a step brought "
                        "nothing new; nothing was changed",
                        name_);
    }
    std::span<const int32_t> ranks = groups_.exchange->ranks();
    int32_t other = ranks[static_cast<size_t>(result.other)];
    return make_error(ALQ_RANK_MISMATCH,
                      "engine {}: rank {} and rank {} called step with "
                      "different learning rates, weight decays or clip norms, "
                      "or after a different number of steps; nothing was "
                      "changed",
                      name_, ranks[0], other)
        .with_rank(other);
  }
  if (result.outcome == StepOutcome::kWeights) {
    return make_error(ALQ_FAILED_PRECONDITION,
                      "engine {}: the weights of this step sum to {} over all "
                      "ranks; the sum must be above 0 and finite, and so must "
                      "sum x loss scale and its inverse.  Nothing was changed",
                      name_, result.weight_sum);
  }
  if (report == nullptr) return {};
  alq_step_report out = {};
  out.struct_size = report->struct_size;
  out.grad_norm = result.grad_norm;
  out.weight_sum = result.weight_sum;
  out.step = result.steps;
  out.bad_param = result.bad_element < 0 ? -1 : param_at(result.bad_element);
  out.bad_rank = result.bad_rank;
  out.bad_microbatch = result.bad_microbatch;
  out.skipped = result.outcome == StepOutcome::kSkipped ? 1 : 0;
  *report = out;
  return {};
}

// After all that was queued is done: the count of steps as it came out, and the
// first of them that all ranks refused and no call has returned yet.
Status Engine::catch_up() {
  kernels::StepResult* results = step_memory_->results;
  if (outcome_unknown_) steps_ = results[0].steps;
  outcome_unknown_ = false;
  return outcome(std::exchange(results[1], {}), nullptr);
}

}  // namespace aliquot::engine
