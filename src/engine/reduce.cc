// Reductions: from a bundle's lent gradients to the step's gradient.
//
// The sum over microbatches and ranks has the plan's nesting:
//   each  microbatch: shards are summed first, the sums then over microbatches;
//   last  microbatch only: microbatches first, in full, then the shards;
//   replicas are outermost, once per step.
// Each level is linear in index order in the accumulate dtype.
// Cost per rank and axis of S ranks: (S-1)/S of the bytes for states that are
// sharded over it, twice that else.
#include "engine/executor.h"

namespace aliquot::engine {

// What one reduction over the shards leaves is the step's gradient.
bool Executor::norm_on_the_way(const SegmentPlan& p) const {
  return plan_.axes.shards > 1 && plan_.axes.replicas == 1 &&
         p.shard_levels.empty() && groups_.reduce->abilities().counts_norm &&
         !context_->faults.skips("engine.comm");
}

Status Executor::reduce(int32_t bundle, Stream* caller) {
  ALQ_TRY(context_->faults.point("engine.reduce"));
  BundleEvents& events = events_[static_cast<size_t>(bundle)];
  reducing_ = true;
  ALQ_TRY(device_->record(*events.written, caller));
  ALQ_TRY(device_->wait(reduce_stream_.get(), *events.written,
                        context_->deadline(0)));
  const BundlePlan& b = plan_.bundles[static_cast<size_t>(bundle)];
  ALQ_ASSIGN(trace::Span * span,
             begin_bundle(trace::Lane::kReduce, bundle,
                          reduce_bytes(plan_, bundle), reduce_stream_.get()));
  for (size_t s = 0; s < b.segments.size(); ++s) {
    if (b.segments[s].grad_dtype == 0 || b.segments[s].count == 0) continue;
    ALQ_TRY(check_finite(bundle, s));
    ALQ_TRY(reduce_segment(bundle, s));
    const SegmentPlan& p = b.segments[s];
    bool kept =
        p.final.offset >= p.grad.offset &&
        p.final.offset < p.grad.offset + p.count * dtype_size(p.grad_dtype);
    kept = kept || p.sums_in_view();
    if (config_.poison && !kept) {
      ALQ_TRY(fill(reduce_stream_.get(), memory_.at(p.grad),
                   p.count * dtype_size(p.grad_dtype), true));
    }
  }
  count_reduction(bundle);
  ALQ_TRY(end_span(span, reduce_stream_.get()));
  return device_->record(*events.reduced, reduce_stream_.get());
}

void Executor::count_reduction(int32_t bundle) {
  bool defer = plan_.bundles[static_cast<size_t>(bundle)].defer;
  if (plan_.axes.shards == 1 || (defer && !place_.last)) return;
  ++traffic_.reductions;
  traffic_.reduce_bytes += reduce_bytes(plan_, bundle);
}

// A pass of its own over the gradients, where no sum over the shards that looks
// as it adds is made now.
Status Executor::check_finite(int32_t bundle, size_t segment) {
  const SegmentPlan& p =
      plan_.bundles[static_cast<size_t>(bundle)].segments[segment];
  if (plan_.axes.shards > 1 && p.local_levels.empty() &&
      groups_.reduce->abilities().finds_bad) {
    return {};
  }
  kernels::FiniteArgs args{&step_memory_.bad[place_.index].element,
                           memory_.at(p.grad),
                           p.count,
                           p.grad_dtype,
                           0,
                           element_base(bundle, static_cast<int32_t>(segment))};
  return launch(reduce_stream_.get(), kernels::OpCode::kFinite, args);
}

// dst = src if first, else dst += src.
Status Executor::add(void* dst, Dtype dst_dtype, const void* src,
                     Dtype src_dtype, int64_t count, bool first) {
  if (first) {
    kernels::CastArgs args{dst, src, count, dst_dtype, src_dtype, 1.0};
    return launch(reduce_stream_.get(), kernels::OpCode::kCast, args);
  }
  kernels::AccumulateArgs args{dst, src, count, dst_dtype, src_dtype};
  return launch(reduce_stream_.get(), kernels::OpCode::kAccumulate, args);
}

Status Executor::fold(const std::vector<Region>& levels, const SegmentPlan& p,
                      int64_t count) {
  Status status;
  plan_.nesting.after(
      place_.index, place_.last, [&](int32_t level, bool first) {
        if (!status.ok()) return;
        size_t l = static_cast<size_t>(level);
        status = add(memory_.at(levels[l - 1]), p.accum_dtype,
                     memory_.at(levels[l]), p.accum_dtype, count, first);
      });
  return status;
}

Status Executor::sum_locally(const SegmentPlan& p) {
  const Region& inner = p.local_levels.back();
  if (inner.offset != p.grad.offset) {
    ALQ_TRY(add(memory_.at(inner), p.accum_dtype, memory_.at(p.grad),
                p.grad_dtype, p.count,
                plan_.nesting.first_at_innermost(place_.index)));
  }
  return fold(p.local_levels, p, p.count);
}

Status Executor::reduce_segment(int32_t bundle, size_t segment) {
  const SegmentPlan& p =
      plan_.bundles[static_cast<size_t>(bundle)].segments[segment];
  if (!p.local_levels.empty()) {
    ALQ_TRY(sum_locally(p));
    if (!place_.last) return {};
    ALQ_TRY(reduce_over_shards(bundle, segment, memory_.at(p.local_levels[0]),
                               p.accum_dtype));
  } else {
    ALQ_TRY(
        reduce_over_shards(bundle, segment, memory_.at(p.grad), p.grad_dtype));
    if (!p.shard_levels.empty()) {
      ALQ_TRY(fold(p.shard_levels, p, p.shard.count));
    }
  }
  return place_.last ? reduce_over_replicas(bundle, segment) : Status{};
}

Status Executor::reduce_over_shards(int32_t bundle, size_t segment,
                                    const void* src, Dtype dtype) {
  const SegmentPlan& p =
      plan_.bundles[static_cast<size_t>(bundle)].segments[segment];
  bool sums = !p.shard_levels.empty();
  bool first = !sums || plan_.nesting.first_at_innermost(place_.index);
  std::byte* dst = memory_.at(sums ? p.shard_levels.back() : p.sum);
  if (plan_.axes.shards == 1) {
    if (dst == src) return {};
    return add(dst, p.accum_dtype, src, dtype, p.count, first);
  }
  Coll coll;
  coll.src = src;
  coll.dst = dst;
  coll.dtype = dtype;
  coll.out_dtype = p.accum_dtype;
  coll.op = ALQ_SUM;
  coll.label = model_.bundles[static_cast<size_t>(bundle)].name.c_str();
  if (p.local_levels.empty() && groups_.reduce->abilities().finds_bad) {
    coll.bad = &step_memory_.bad[place_.index];
  }
  if (norm_on_the_way(p)) coll.norm = step_memory_.counted;
  coll.base = element_base(bundle, static_cast<int32_t>(segment));
  coll.cold = !sums && plan_.outgrows_caches();
  if (p.extent == Extent::kWhole) return reduce_whole(p, coll, first);
  coll.kind = CollKind::kReduceScatter;
  coll.counts = counts_[static_cast<size_t>(bundle)][segment].shards;
  coll.accumulate = !first;
  return communicate(*groups_.reduce, coll, reduce_stream_.get());
}

// An all-reduce adds nothing to what its destination held: that comes after.
Status Executor::reduce_whole(const SegmentPlan& p, Coll coll, bool first) {
  void* sum = coll.dst;
  coll.kind = CollKind::kAllReduce;
  coll.count = p.count;
  if (!first) coll.dst = memory_.at(p.staging);
  ALQ_TRY(communicate(*groups_.reduce, coll, reduce_stream_.get()));
  if (first) return {};
  return add(sum, p.accum_dtype, coll.dst, p.accum_dtype, p.count, false);
}

Status Executor::reduce_over_replicas(int32_t bundle, size_t segment) {
  if (plan_.axes.replicas == 1) return {};
  const SegmentPlan& p =
      plan_.bundles[static_cast<size_t>(bundle)].segments[segment];
  Coll coll;
  coll.src = memory_.at(p.sum);
  coll.dst = memory_.at(p.final);
  coll.dtype = p.accum_dtype;
  coll.op = ALQ_SUM;
  coll.label = model_.bundles[static_cast<size_t>(bundle)].name.c_str();
  if (p.extent == Extent::kPart) {
    coll.kind = CollKind::kReduceScatter;
    coll.counts = counts_[static_cast<size_t>(bundle)][segment].parts;
  } else {
    coll.kind = CollKind::kAllReduce;
    coll.count = p.own.count;
  }
  ++traffic_.reductions;
  traffic_.reduce_bytes += replica_reduce_bytes(plan_, p);
  return communicate(*groups_.replicate, coll, reduce_stream_.get());
}

}  // namespace aliquot::engine
