// The step: one exchange of scalars, then the optimizer on own shards.
//
// Every rank contributes a share: the exact binned sum of squares of the
// gradient elements it counts, its weight sum, and the first non-finite
// gradient that it found.  Ranks that hold copies of the same elements count a
// part of them each, so that every element is counted once whatever the
// placements.  All ranks merge all shares in rank order, so norm, clip factor
// and the decision to skip are the same bits everywhere.  The exchange is also
// the point after which no rank reads the old parameters any more.
//
// All of it is operations of one stream (kernels/arithmetic/step.h has the
// arithmetic): the optimizer's kernels read what was decided.  Where streams
// run by themselves the host only enqueues, assumes that the step is taken, and
// reads the outcome when it waits anyway.  Elsewhere it reads the outcome at
// once and launches nothing for a step that is not taken.
#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/engine.h"

namespace aliquot::engine {

// Of the own elements, those that this rank counts: its part among the ranks
// that own the same ones.
Range Engine::counted(const SegmentPlan& p) const {
  const DataAxes& axes = plan_.axes;
  int32_t copies = 1, copy = 0;
  if (p.extent != Extent::kPart) {
    copies = axes.replicas;
    copy = axes.replica_index;
  }
  if (p.extent == Extent::kWhole) {
    copies *= axes.shards;
    copy = copy * axes.shards + axes.shard_index;
  }
  int64_t most = reduce_chunk(p.own.count, copies);
  int64_t begin = std::min(copy * most, p.own.count);
  return {begin, std::min(begin + most, p.own.count) - begin};
}

// Reductions counted most of it on their way, which nobody changed since.
Status Engine::local_norm(Stream* stream) {
  for (size_t b = 0; b < plan_.bundles.size(); ++b) {
    for (size_t s = 0; s < plan_.bundles[b].segments.size(); ++s) {
      const SegmentPlan& p = plan_.bundles[b].segments[s];
      if (p.grad_dtype == 0) continue;
      if (!grads_exposed_ && executor_->norm_on_the_way(p)) continue;
      Range part = counted(p);
      if (part.count == 0) continue;
      int64_t base = executor_->element_base(static_cast<int32_t>(b),
                                             static_cast<int32_t>(s));
      kernels::NormArgs args{
          &step_memory_->mine->bins,
          executor_->at(p.final) + part.begin * dtype_size(p.accum_dtype),
          part.count,
          p.accum_dtype,
          0,
          base + p.own.begin + part.begin};
      ALQ_TRY(launch(stream, kernels::OpCode::kNorm, args));
    }
  }
  return {};
}

Status Engine::update_run(const SegmentPlan& p, const Run& run,
                          Stream* stream) {
  int64_t begin = run.begin - p.own.begin, end = run.end - p.own.begin;
  const alq_optimizer_desc& o =
      optimizers_[static_cast<size_t>(run.group)].desc;
  if (begin >= end || o.kind == ALQ_OPTIM_NONE) return {};
  auto place = [&](const Region& region, Dtype dtype) -> std::byte* {
    if (!region.exists()) return nullptr;
    return executor_->at(region) + begin * dtype_size(dtype);
  };
  const kernels::StepScalars* scalars = step_memory_->scalars;
  const kernels::StepFactors* factors = step_memory_->factors + run.group;
  bool copies = p.master_dtype != p.dtype;
  if (o.kind == ALQ_OPTIM_SGD) {
    kernels::SgdArgs args = {};
    args.master = place(p.master, p.master_dtype);
    args.model = copies ? place(p.own_params, p.dtype) : nullptr;
    args.grad = place(p.final, p.accum_dtype);
    args.momentum_buffer =
        o.momentum != 0 ? place(p.state[0], p.state_dtype) : nullptr;
    args.scalars = scalars;
    args.count = end - begin;
    args.master_dtype = p.master_dtype;
    args.model_dtype = p.dtype;
    args.grad_dtype = p.accum_dtype;
    args.state_dtype = p.state_dtype != 0 ? p.state_dtype : p.master_dtype;
    args.factors = factors;
    args.momentum = o.momentum;
    args.dampening = o.dampening;
    args.nesterov = o.nesterov;
    return device_->launch(stream, kernels::OpCode::kSgd, &args, sizeof args);
  }
  kernels::AdamWArgs args = {};
  args.master = place(p.master, p.master_dtype);
  args.model = copies ? place(p.own_params, p.dtype) : nullptr;
  args.grad = place(p.final, p.accum_dtype);
  args.m = place(p.state[0], p.state_dtype);
  args.v = place(p.state[1], p.state_dtype);
  args.scalars = scalars;
  args.count = end - begin;
  args.master_dtype = p.master_dtype;
  args.model_dtype = p.dtype;
  args.grad_dtype = p.accum_dtype;
  args.state_dtype = p.state_dtype;
  args.beta1 = o.beta1;
  args.one_minus_beta1 = 1 - o.beta1;
  args.beta2 = o.beta2;
  args.one_minus_beta2 = 1 - o.beta2;
  args.factors = factors;
  args.eps = o.eps;
  return device_->launch(stream, kernels::OpCode::kAdamW, &args, sizeof args);
}

Status Engine::update(Stream* stream) {
  for (size_t b = 0; b < plan_.bundles.size(); ++b) {
    for (size_t s = 0; s < plan_.bundles[b].segments.size(); ++s) {
      const SegmentPlan& p = plan_.bundles[b].segments[s];
      if (p.grad_dtype == 0) continue;
      ALQ_TRY(update_segment(p, model_.bundles[b].segments[s].runs, stream));
    }
  }
  return {};
}

// What goes to other ranks as well goes there piece by piece, from the caches.
Status Engine::update_segment(const SegmentPlan& p,
                              const std::vector<Run>& runs, Stream* stream) {
  constexpr int64_t kPiece = int64_t{1} << 16;
  int64_t most = p.together ? kPiece : p.updates.count;
  for (int64_t at = p.updates.begin; at < p.updates.end(); at += most) {
    int64_t end = std::min(at + most, p.updates.end());
    for (Run run : runs) {
      run.begin = std::max(run.begin, at);
      run.end = std::min(run.end, end);
      ALQ_TRY(update_run(p, run, stream));
    }
    if (p.together) ALQ_TRY(copy_to_peers(p, {at, end - at}, stream));
  }
  return {};
}

Status Engine::copy_to_peers(const SegmentPlan& p, const Range& part,
                             Stream* stream) {
  if (context_->faults.skips("engine.comm")) return {};
  auto copy = [&](const Region& region, Dtype dtype) -> Status {
    int64_t begin = part.begin * dtype_size(dtype);
    kernels::CopyArgs args{nullptr, executor_->at(region) + begin,
                           part.count * dtype_size(dtype),
                           plan_.outgrows_caches()};
    for (int32_t i = 1; i < plan_.axes.shards; ++i) {
      int32_t peer = (plan_.axes.shard_index + i) % plan_.axes.shards;
      args.dst =
          executor_->at_peer(region, peer - plan_.axes.shard_index) + begin;
      ALQ_TRY(
          device_->launch(stream, kernels::OpCode::kCopy, &args, sizeof args));
    }
    return {};
  };
  ALQ_TRY(copy(p.own_params, p.dtype));
  return p.master_dtype == p.dtype ? Status{} : copy(p.master, p.master_dtype);
}

Status Engine::check_rates(const alq_step_desc& desc) const {
  for (size_t g = 0; g < optimizers_.size(); ++g) {
    double lr = desc.lr[g];
    double wd = desc.weight_decay == nullptr ? 0 : desc.weight_decay[g];
    if (!std::isfinite(lr) || !std::isfinite(wd)) {
      return make_error(ALQ_INVALID_ARGUMENT,
                        "engine {}: group {} has learning rate {} and weight "
                        "decay {}; both must be finite",
                        name_, g, lr, wd);
    }
  }
  return {};
}

// Clip norm, learning rates, weight decays.
Status Engine::record_step(const alq_step_desc& desc) {
  if (log_ == nullptr || following_) return {};
  size_t groups = optimizers_.size();
  double* rates = log_->rates(groups_.exchange->rank());
  rates[0] = desc.clip_norm;
  std::copy_n(desc.lr, groups, rates + 1);
  if (desc.weight_decay != nullptr) {
    std::copy_n(desc.weight_decay, groups, rates + 1 + groups);
  }
  int16_t decays = desc.weight_decay != nullptr ? 1 : 0;
  return record({CallKind::kStep, decays});
}

void Engine::clear_step() {
  microbatch_ = 0;
  last_ = false;
  weight_sum_ = 0;
}

Status Engine::check_step(const alq_step_desc& desc) const {
  if (!last_) {
    return make_error(
        ALQ_FAILED_PRECONDITION,
        "engine {}: step without a last microbatch; pass last = 1 "
        "to the step's last alq_microbatch_begin",
        name_);
  }
  if (desc.n_groups < static_cast<int32_t>(optimizers_.size()) ||
      desc.lr == nullptr) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "engine {}: step has learning rates for {} groups, the "
                      "model has {}",
                      name_, desc.lr == nullptr ? 0 : desc.n_groups,
                      optimizers_.size());
  }
  if (core_->in_microbatch()) {
    return explain({CoreCode::kInMicrobatch}, "step", -1, 0);
  }
  CoreError refused = core_->check_step();
  if (!refused.ok()) return explain(refused, "step", -1, 0);
  return check_rates(desc);
}

// What the step that is decided changes, if it is taken.
Status Engine::apply(Stream* stream) {
  ALQ_TRY(update(stream));
  ALQ_TRY(context_->faults.point("engine.updated"));
  ALQ_TRY(executor_->updated_on(stream));
  ++steps_;
  CoreError error = core_->step();
  if (!error.ok()) return explain(error, "step", -1, 0);
  if (!plan_.reaches_peers() || context_->faults.skips("engine.comm")) {
    return {};
  }
  // Ranks read each other's bytes: go on when all have written theirs.
  Coll barrier;
  barrier.label = "step";
  Status met = groups_.exchange->issue(barrier, stream, nullptr);
  if (!met.ok() && plan_.open_bytes > 0) {
    return make_error(met.code(),
                      "engine {}: step {} was not finished by all ranks, and "
                      "this rank's parameters may be in parts those before it; "
                      "load a checkpoint before going on.  {}",
                      name_, steps_, met.message())
        .with_rank(met.rank());
  }
  ALQ_TRY(std::move(met));
  return executor_->updated_on(stream);
}

// The host reads the outcome before it goes on.
Status Engine::step_now(const alq_step_desc& desc, Stream* stream,
                        alq_step_report* report) {
  if (stream != nullptr) ALQ_TRY(device_->synchronize(*stream, deadline()));
  ALQ_TRY(executor_->drain(deadline()));
  trace::Span span;
  span.begin = now_ns();
  span.lane = trace::Lane::kStep;
  span.step = static_cast<int32_t>(steps_);
  ALQ_TRY(decide(desc, nullptr));
  const kernels::StepResult result = step_memory_->results[0];
  if (Status refused = catch_up(); !refused.ok()) {
    clear_step();
    return refused;
  }
  if (result.outcome == kernels::StepOutcome::kTaken) ALQ_TRY(apply(stream));
  span.end = now_ns();
  recorder_.add(span);
  clear_step();
  return outcome(result, report);
}

// A rank that leaves later aborts the groups, which must not end the exchange
// of a step that it has taken on another: so all meet once they have decided,
// beside the update, and who leaves waits for that (abandon.cc).
//
// The host enqueues, and waits only if it is asked for a report.  It assumes
// the same on all ranks, whoever asks: that parameters change.
Status Engine::step_later(const alq_step_desc& desc, Stream* stream,
                          alq_step_report* report) {
  ALQ_TRY(executor_->order_before(stream, deadline()));
  trace::Span span;
  span.lane = trace::Lane::kStep;
  span.step = static_cast<int32_t>(steps_);
  ALQ_ASSIGN(trace::Span * open, executor_->begin_span(span, stream));
  Status enqueued = decide(desc, stream);
  ALQ_TRY(device_->record(*decided_, stream));  // also of what there is of it
  ALQ_TRY(std::move(enqueued));
  outcome_unknown_ = true;
  ALQ_TRY(executor_->meet_after(*decided_));
  ALQ_TRY(apply(stream));
  ALQ_TRY(executor_->await_meeting(stream));
  ALQ_TRY(executor_->end_span(open, stream));
  ALQ_TRY(executor_->used_on(stream));
  clear_step();
  if (report == nullptr) return {};
  ALQ_TRY(device_->synchronize(*decided_, deadline()));
  const kernels::StepResult result = step_memory_->results[0];
  ALQ_TRY(catch_up());
  return outcome(result, report);
}

Status Engine::step(const alq_step_desc& desc, Stream* stream,
                    alq_step_report* report) {
  ALQ_TRY(need_committed("step"));
  ALQ_TRY(context_->faults.point("engine.step"));
  ALQ_TRY(check_step(desc));
  // Before the call counts: the other ranks may not ask for a report.
  if (report != nullptr && stream != nullptr) {
    ALQ_TRY(device_->check_waitable(*stream));
  }
  ALQ_TRY(record_step(desc));
  return device_->asynchronous() ? step_later(desc, stream, report)
                                 : step_now(desc, stream, report);
}

}  // namespace aliquot::engine
