// The step: one exchange of scalars, then the optimizer on own shards.
//
// Every rank contributes a StepShare: the exact binned sum of squares of the
// gradient elements it counts, its weight sum, and the first non-finite
// gradient that it found.  Ranks that hold copies of the same elements count a
// part of them each, so that every element is counted once whatever the
// placements.  All ranks merge all shares in rank order, so norm, clip factor
// and the decision to skip are the same bits everywhere.  The exchange is also
// the point after which no rank reads the old parameters any more.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "engine/engine.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace aliquot::engine {

struct Engine::StepShare {
  kernels::NormBins bins;
  double weight;
  int64_t bad_element;  // first non-finite gradient found here, or -1
  int32_t bad_microbatch, bad_rank;
  uint64_t call;  // hash of the step's arguments: all ranks must agree
};

// Of every data rank; made at commit, so that a step allocates nothing.
struct Engine::StepShares {
  std::vector<StepShare> all;
};

void Engine::make_shares() {
  shares_ = std::make_shared<StepShares>();
  shares_->all.resize(static_cast<size_t>(groups_.exchange->size()));
}

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
Status Engine::local_norm(Stream* stream, StepShare* mine) {
  bool counted_before = !grads_exposed_;
  if (counted_before) kernels::norm_merge(&mine->bins, executor_->norm());
  for (size_t b = 0; b < plan_.bundles.size(); ++b) {
    for (size_t s = 0; s < plan_.bundles[b].segments.size(); ++s) {
      const SegmentPlan& p = plan_.bundles[b].segments[s];
      if (p.grad_dtype == 0) continue;
      if (counted_before && executor_->norm_on_the_way(p)) continue;
      Range part = counted(p);
      if (part.count == 0) continue;
      int64_t base = executor_->element_base(static_cast<int32_t>(b),
                                             static_cast<int32_t>(s));
      kernels::NormArgs args{
          &mine->bins,
          executor_->at(p.final) + part.begin * dtype_size(p.accum_dtype),
          part.count,
          p.accum_dtype,
          0,
          base + p.own.begin + part.begin};
      ALQ_TRY(
          device_->launch(stream, kernels::OpCode::kNorm, &args, sizeof args));
    }
  }
  return {};
}

Status Engine::gather_shares(Stream* stream, StepShare* mine,
                             std::vector<StepShare>* all) {
  Coll coll;
  coll.kind = CollKind::kAllGather;
  coll.src = mine;
  coll.dst = all->data();
  coll.count = sizeof(StepShare);
  coll.dtype = ALQ_U8;
  coll.label = "step";
  if (context_->faults.skips("engine.comm")) {
    std::fill(all->begin(), all->end(), *mine);
    return {};
  }
  return groups_.exchange->issue(coll, stream, nullptr);
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

Status Engine::update_run(const alq_step_desc& desc, const SegmentPlan& p,
                          const Run& run, Stream* stream) {
  int64_t begin = run.begin - p.own.begin, end = run.end - p.own.begin;
  const alq_optimizer_desc& o =
      optimizers_[static_cast<size_t>(run.group)].desc;
  if (begin >= end || o.kind == ALQ_OPTIM_NONE) return {};
  auto place = [&](const Region& region, Dtype dtype) -> std::byte* {
    if (!region.exists()) return nullptr;
    return executor_->at(region) + begin * dtype_size(dtype);
  };
  const auto* scalars =
      reinterpret_cast<const kernels::StepScalars*>(scalars_->data());
  double lr = desc.lr[run.group];
  double wd = desc.weight_decay == nullptr ? 0 : desc.weight_decay[run.group];
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
    args.lr = lr;
    args.weight_decay = wd;
    args.momentum = o.momentum;
    args.dampening = o.dampening;
    args.nesterov = o.nesterov;
    args.first = steps_ == 0;
    return device_->launch(stream, kernels::OpCode::kSgd, &args, sizeof args);
  }
  double t = static_cast<double>(steps_ + 1);
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
  args.decay = 1 - lr * wd;
  args.step_size = lr / (1 - std::pow(o.beta1, t));
  args.inv_sqrt_bc2 = 1 / std::sqrt(1 - std::pow(o.beta2, t));
  args.eps = o.eps;
  return device_->launch(stream, kernels::OpCode::kAdamW, &args, sizeof args);
}

Status Engine::update(const alq_step_desc& desc, Stream* stream) {
  for (size_t b = 0; b < plan_.bundles.size(); ++b) {
    for (size_t s = 0; s < plan_.bundles[b].segments.size(); ++s) {
      const SegmentPlan& p = plan_.bundles[b].segments[s];
      if (p.grad_dtype == 0) continue;
      ALQ_TRY(
          update_segment(desc, p, model_.bundles[b].segments[s].runs, stream));
    }
  }
  return {};
}

// What goes to other ranks as well goes there piece by piece, from the caches.
Status Engine::update_segment(const alq_step_desc& desc, const SegmentPlan& p,
                              const std::vector<Run>& runs, Stream* stream) {
  constexpr int64_t kPiece = int64_t{1} << 16;
  int64_t most = p.together ? kPiece : p.updates.count;
  for (int64_t at = p.updates.begin; at < p.updates.end(); at += most) {
    int64_t end = std::min(at + most, p.updates.end());
    for (Run run : runs) {
      run.begin = std::max(run.begin, at);
      run.end = std::min(run.end, end);
      ALQ_TRY(update_run(desc, p, run, stream));
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

uint64_t Engine::hash_call(const alq_step_desc& desc) const {
  XXH64_hash_t hash = XXH3_64bits_withSeed(&desc.clip_norm, sizeof(double),
                                           static_cast<uint64_t>(steps_));
  size_t bytes = optimizers_.size() * sizeof(double);
  hash = XXH3_64bits_withSeed(desc.lr, bytes, hash);
  if (desc.weight_decay == nullptr) return hash;
  return XXH3_64bits_withSeed(desc.weight_decay, bytes, hash);
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

Status Engine::step(const alq_step_desc& desc, Stream* stream,
                    alq_step_report* report) {
  ALQ_TRY(need_committed("step"));
  ALQ_TRY(context_->faults.point("engine.step"));
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
  ALQ_TRY(check_rates(desc));
  ALQ_TRY(record_step(desc));
  if (stream != nullptr) ALQ_TRY(device_->synchronize(*stream, deadline()));
  ALQ_TRY(executor_->drain(deadline()));
  int64_t begin = now_ns();

  BadGradient bad = executor_->bad_gradient();
  StepShare mine = {};
  mine.weight = weight_sum_;
  mine.bad_element = bad.element;
  mine.bad_microbatch = bad.microbatch;
  mine.bad_rank = bad.rank;
  mine.call = hash_call(desc);
  ALQ_TRY(local_norm(nullptr, &mine));
  std::vector<StepShare>& all = shares_->all;
  ALQ_TRY(gather_shares(nullptr, &mine, &all));
  gathered_since_sync_ = false;

  kernels::NormBins bins = {};
  double weight = 0;
  alq_step_report out = {};
  out.bad_param = out.bad_rank = out.bad_microbatch = -1;
  int64_t bad_element = -1;
  for (size_t r = 0; r < all.size(); ++r) {
    const StepShare& share = all[r];
    weight += share.weight;
    if (share.call != all[0].call) {
      clear_step();
      return make_error(
                 ALQ_RANK_MISMATCH,
                 "engine {}: rank {} and rank {} called step with "
                 "different learning rates, weight decays or clip norms, "
                 "or after a different number of steps; nothing was "
                 "changed",
                 name_, groups_.exchange->ranks()[0],
                 groups_.exchange->ranks()[r])
          .with_rank(groups_.exchange->ranks()[r]);
    }
    kernels::norm_merge(&bins, share.bins);
    if (share.bad_element < 0) continue;
    std::tuple key(share.bad_microbatch, share.bad_rank, share.bad_element);
    if (bad_element < 0 ||
        key < std::tuple(out.bad_microbatch, out.bad_rank, bad_element)) {
      std::tie(out.bad_microbatch, out.bad_rank, bad_element) = key;
    }
  }
  double divisor = weight * config_.loss_scale;
  if (!(weight > 0) || !std::isfinite(divisor) || !std::isfinite(1 / divisor)) {
    clear_step();
    return make_error(ALQ_FAILED_PRECONDITION,
                      "engine {}: the weights of this step sum to {} over all "
                      "ranks; the sum must be above 0 and finite, and so must "
                      "sum x loss scale and its inverse.  Nothing was changed",
                      name_, weight);
  }
  double scale = 1 / divisor;
  out.grad_norm = kernels::norm_root(bins) * scale;
  out.weight_sum = weight;
  // An overflow of the sum itself has no single contributor.
  out.skipped = bins.nonfinite > 0 || bad_element >= 0 ? 1 : 0;
  if (bad_element < 0 && bins.nonfinite > 0) bad_element = bins.first_bad;
  if (bad_element >= 0) out.bad_param = param_at(bad_element);

  if (out.skipped == 0) {
    if (desc.clip_norm > 0) {
      scale *= std::min(1.0, desc.clip_norm / (out.grad_norm + 1e-6));
    }
    *reinterpret_cast<kernels::StepScalars*>(scalars_->data()) = {scale, 0};
    ALQ_TRY(update(desc, stream));
    ALQ_TRY(executor_->updated_on(stream));
    ++steps_;
    CoreError error = core_->step();
    if (!error.ok()) return explain(error, "step", -1, 0);
    if (plan_.reaches_peers() && !context_->faults.skips("engine.comm")) {
      // Ranks read each other's bytes: go on when all have written theirs.
      Coll barrier;
      barrier.label = "step";
      ALQ_TRY(groups_.exchange->issue(barrier, stream, nullptr));
      ALQ_TRY(executor_->updated_on(stream));
    }
  }
  out.step = steps_;
  trace::Span span;
  span.begin = begin;
  span.end = now_ns();
  span.lane = trace::Lane::kStep;
  span.step = static_cast<int32_t>(steps_ - (out.skipped == 0 ? 1 : 0));
  recorder_.add(span);
  clear_step();
  if (report != nullptr) {
    out.struct_size = report->struct_size;
    *report = out;
  }
  return {};
}

}  // namespace aliquot::engine
