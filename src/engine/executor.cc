// The executor: creation, residency (gather, await, evict) and gradient slots.
// Reductions are in reduce.cc.
#include "engine/executor.h"

#include <algorithm>

namespace aliquot::engine {

namespace {

size_t at_index(int32_t i) { return static_cast<size_t>(i); }

// Below this a gather is mostly latency: merging units would help.
constexpr int64_t kSmallBytes = 64 << 10;

}  // namespace

Result<std::unique_ptr<Executor>> Executor::create(
    std::shared_ptr<Context> context, std::shared_ptr<Device> device,
    DataGroups groups, const Model* model, const Plan* plan,
    const EngineConfig* config, trace::Recorder* recorder, StepMemory* step,
    void* slab, Deadline deadline) {
  std::unique_ptr<Executor> e(
      new Executor(std::move(context), std::move(device), std::move(groups),
                   model, plan, config, recorder, step));
  ALQ_ASSIGN(e->memory_,
             EngineMemory::create(*plan, e->device_.get(),
                                  e->groups_.gather.get(), slab, deadline));
  e->link_failures();
  ALQ_TRY(e->make_streams());
  int64_t base = 0;
  int32_t grad_slots = 0;
  for (size_t b = 0; b < model->bundles.size(); ++b) {
    e->names_.push_back(recorder->name(model->bundles[b].name));
    e->bases_.emplace_back();
    e->counts_.emplace_back();
    for (const Segment& segment : model->bundles[b].segments) {
      e->bases_.back().push_back(base);
      base += segment.count;
      e->counts_.back().push_back(
          {segment.shard_counts(),
           segment.part_counts(plan->axes.shard_index)});
    }
    grad_slots = std::max(grad_slots, plan->bundles[b].grad_slot + 1);
  }
  e->grad_slot_user_.assign(at_index(grad_slots), -1);
  return e;
}

void Executor::link_failures() {
  groups_.fail_together();
  for (const auto& group : groups_.all()) {
    group->on_failure(step_memory_.fail_word());
  }
}

Status Executor::make_streams() {
  ALQ_ASSIGN(gather_stream_, device_->create_stream("gather"));
  ALQ_ASSIGN(reduce_stream_, device_->create_stream("reduce"));
  ALQ_ASSIGN(updated_, device_->create_event());
  ALQ_ASSIGN(used_, device_->create_event());
  ALQ_ASSIGN(gathers_, device_->create_event());
  ALQ_ASSIGN(reductions_, device_->create_event());
  ALQ_ASSIGN(met_, device_->create_event());
  events_.clear();
  for (size_t b = 0; b < model_.bundles.size(); ++b) {
    BundleEvents events;
    ALQ_ASSIGN(events.gathered, device_->create_event());
    ALQ_ASSIGN(events.reduced, device_->create_event());
    ALQ_ASSIGN(events.written, device_->create_event());
    ALQ_ASSIGN(events.read, device_->create_event());
    events_.push_back(std::move(events));
  }
  return {};
}

Status Executor::settle(Deadline deadline) {
  for (Stream* stream : {gather_stream_.get(), reduce_stream_.get()}) {
    Status ended = device_->synchronize(*stream, deadline);
    if (ended.code() == ALQ_DEADLINE_EXCEEDED && deadline.passed()) {
      return ended;
    }
  }
  if (!asynchronous_) return {};
  for (Event* event : {updated_.get(), used_.get()}) {
    Status ended = device_->synchronize(*event, deadline);
    if (ended.code() == ALQ_DEADLINE_EXCEEDED) return ended;
  }
  return {};
}

Status Executor::renew(DataGroups groups) {
  groups_ = std::move(groups);
  link_failures();
  ALQ_TRY(make_streams());
  std::fill(grad_slot_user_.begin(), grad_slot_user_.end(), -1);
  gathering_ = reducing_ = false;
  reset_counters();
  place_ = {};
  return {};
}

const SegmentPlan& Executor::segment_of(const Param& param) const {
  return plan_.bundles[at_index(param.bundle)]
      .segments[at_index(param.segment)];
}

std::byte* Executor::param(int32_t id) const {
  const Param& param = model_.params[at_index(id)];
  const SegmentPlan& p = segment_of(param);
  return memory_.at(p.full) + param.offset * dtype_size(p.dtype);
}

std::byte* Executor::grad(int32_t id) const {
  const Param& param = model_.params[at_index(id)];
  const SegmentPlan& p = segment_of(param);
  return memory_.at(p.grad) + param.offset * dtype_size(p.grad_dtype);
}

Status Executor::run(std::vector<Action>* actions, Stream* caller,
                     MicrobatchPlace place, Deadline deadline) {
  place_ = place;
  Status status;
  for (const Action& action : *actions) {
    status = execute(action, caller, deadline);
    if (!status.ok()) break;
  }
  actions->clear();
  return status;
}

Status Executor::execute(const Action& action, Stream* caller,
                         Deadline deadline) {
  switch (action.kind) {
    case ActionKind::kEvict: return evict(action.bundle, caller);
    case ActionKind::kGather: return gather(action.bundle, caller, action.arg);
    case ActionKind::kAwait: return await(action.bundle, caller, deadline);
    case ActionKind::kOpenGrads:
      return open_grads(action.bundle, caller, deadline);
    case ActionKind::kZeroGrad: {
      const Param& param = model_.params[at_index(action.arg)];
      // Zero is what this microbatch adds: earlier ones may be there already.
      if (segment_of(param).sums_in_view() && place_.index > 0) return {};
      return zero_grad(action.arg, caller);
    }
    case ActionKind::kReduce: return reduce(action.bundle, caller);
  }
  return {};
}

Status Executor::fill(Stream* stream, void* dst, int64_t bytes, bool nan) {
  // All bits set is a NaN in every floating type.
  kernels::FillArgs args{dst, bytes, nan ? uint64_t{0xff} : uint64_t{0}, 1};
  return launch(stream, kernels::OpCode::kFill, args);
}

// A rank that has no microbatch contributes negative zeros: the one number that
// added to any other changes none of its bits.
Status Executor::zero_grad(int32_t id, Stream* caller) {
  int64_t width =
      dtype_size(segment_of(model_.params[at_index(id)]).grad_dtype);
  uint64_t sign = uint64_t{1} << (8 * width - 1);
  kernels::FillArgs args{grad(id), model_.params[at_index(id)].count,
                         place_.ghost ? sign : 0, width};
  return launch(caller, kernels::OpCode::kFill, args);
}

Status Executor::evict(int32_t bundle, Stream* caller) {
  if (!config_.poison) return {};
  // What the caller enqueued may still read it.
  Event& read = *events_[at_index(bundle)].read;
  gathering_ = true;
  ALQ_TRY(device_->record(read, caller));
  ALQ_TRY(device_->wait(gather_stream_.get(), read, context_->deadline(0)));
  for (const SegmentPlan& p : plan_.bundles[at_index(bundle)].segments) {
    if (!p.gathered && !p.assembled) continue;
    ALQ_TRY(fill(gather_stream_.get(), memory_.at(p.full),
                 p.count * dtype_size(p.dtype), true));
  }
  return {};
}

Status Executor::gather(int32_t bundle, Stream* caller, int32_t flags) {
  BundleEvents& events = events_[at_index(bundle)];
  gathering_ = true;
  // What the caller enqueued may still read the slot, or write the shards.
  ALQ_TRY(device_->record(*events.read, caller));
  Deadline none = context_->deadline(0);
  ALQ_TRY(device_->wait(gather_stream_.get(), *events.read, none));
  ALQ_TRY(device_->wait(gather_stream_.get(), *updated_, none));
  bool changed = (flags & kGatherChanged) != 0;
  int64_t bytes = gather_bytes(plan_, bundle, changed);
  ALQ_ASSIGN(trace::Span * span, begin_bundle(trace::Lane::kGather, bundle,
                                              bytes, gather_stream_.get()));
  const BundlePlan& b = plan_.bundles[at_index(bundle)];
  for (size_t s = 0; s < b.segments.size(); ++s) {
    ALQ_TRY(gather_segment(bundle, s, changed));
  }
  if (b.map) {
    // Peers map this shard: it is whole when all have come here.
    Coll barrier;
    barrier.label = model_.bundles[at_index(bundle)].name.c_str();
    ALQ_TRY(communicate(*groups_.gather, barrier, gather_stream_.get()));
  }
  events.prefetched = (flags & kGatherPrefetched) != 0;
  events.bytes = bytes;
  ++traffic_.gathers;
  traffic_.gather_bytes += bytes;
  ALQ_TRY(end_span(span, gather_stream_.get()));
  return device_->record(*events.gathered, gather_stream_.get());
}

Status Executor::communicate(Group& group, const Coll& coll, Stream* stream) {
  if (context_->faults.skips("engine.comm")) return {};
  return group.issue(coll, stream, nullptr);
}

// Shards change only in step, which meets all ranks first: no rank waits for
// its readers, unless the shard is in a slot that the next gather takes.
Status Executor::gather_segment(int32_t bundle, size_t segment, bool changed) {
  const BundlePlan& b = plan_.bundles[at_index(bundle)];
  const SegmentPlan& p = b.segments[segment];
  if (p.count == 0) return {};
  const Counts& counts = counts_[at_index(bundle)][segment];
  Coll coll;
  coll.kind = CollKind::kAllGather;
  coll.dtype = p.dtype;
  coll.label = model_.bundles[at_index(bundle)].name.c_str();
  if (assembles_now(b, p, changed)) {
    coll.src = memory_.at(p.own_params);
    coll.dst = memory_.at(p.shard_params);
    coll.counts = counts.parts;
    coll.source_stable = true;
    ALQ_TRY(communicate(*groups_.assemble, coll, gather_stream_.get()));
  }
  if (!p.gathered) return {};
  coll.src = memory_.at(p.shard_params);
  coll.dst = memory_.at(p.full);
  coll.counts = counts.shards;
  coll.source_stable = b.placement.params != Extent::kPart;
  return communicate(*groups_.gather, coll, gather_stream_.get());
}

Status Executor::await(int32_t bundle, Stream* caller, Deadline deadline) {
  BundleEvents& events = events_[at_index(bundle)];
  // Streams wait for what may be done, rather than have the host ask.
  bool asks = !asynchronous_ || caller == nullptr;
  if (!asks || !device_->done(*updated_)) {
    ALQ_TRY(device_->wait(caller, *updated_, deadline));
  }
  if (!plan_.bundles[at_index(bundle)].gathers) return {};
  if (asks && device_->done(*events.gathered)) {
    // It did not wait, but may have failed.
    return device_->synchronize(*events.gathered, deadline);
  }
  if (caller != nullptr) {
    return device_->wait(caller, *events.gathered, deadline);
  }
  int64_t begin = now_ns();
  Status status = device_->wait(nullptr, *events.gathered, deadline);
  int64_t end = now_ns();
  exposed_.gather_ns += end - begin;
  trace::Cause cause = trace::Cause::kLateLaunch;
  if (events.prefetched) {
    bool small = events.bytes < kSmallBytes;
    cause = small ? trace::Cause::kSmallMessage : trace::Cause::kLink;
    ++exposed_.slow_gathers;
    exposed_.small_gathers += small ? 1 : 0;
  } else {
    ++exposed_.late_gathers;
  }
  record_wait(bundle, begin, end, cause);
  return status;
}

Result<trace::Span*> Executor::begin_bundle(trace::Lane lane, int32_t bundle,
                                            int64_t bytes, Stream* stream) {
  trace::Span span;
  span.lane = lane;
  span.bytes = bytes;
  span.step = step_;
  span.name = names_[at_index(bundle)];
  return begin_span(span, stream);
}

Result<trace::Span*> Executor::begin_span(trace::Span span, Stream* stream) {
  trace::Span* slot = recorder_.add(span);
  ALQ_TRY(launch(stream, kernels::OpCode::kStamp,
                 kernels::StampArgs{&slot->begin, 0}));
  return slot;
}

Status Executor::end_span(trace::Span* span, Stream* stream) {
  return launch(stream, kernels::OpCode::kStamp,
                kernels::StampArgs{&span->end, 0});
}

void Executor::record_wait(int32_t bundle, int64_t begin, int64_t end,
                           trace::Cause cause) {
  trace::Span span;
  span.begin = begin;
  span.end = end;
  span.lane = trace::Lane::kWait;
  span.cause = cause;
  span.step = step_;
  span.name = bundle < 0 ? -1 : names_[at_index(bundle)];
  recorder_.add(span);
}

Status Executor::open_grads(int32_t bundle, Stream* caller, Deadline deadline) {
  int32_t& user =
      grad_slot_user_[at_index(plan_.bundles[at_index(bundle)].grad_slot)];
  bool asks = !asynchronous_ || caller == nullptr;
  // The optimizer may still read what was collected here, or its sum, on
  // another stream.
  if (!asks || !device_->done(*updated_)) {
    ALQ_TRY(device_->wait(caller, *updated_, deadline));
  }
  if (user >= 0) {
    Event& reduced = *events_[at_index(user)].reduced;
    if (!asks) {
      ALQ_TRY(device_->wait(caller, reduced, deadline));
    } else if (!device_->done(reduced)) {
      int64_t begin = now_ns();
      ALQ_TRY(device_->wait(caller, reduced, deadline));
      int64_t end = now_ns();
      exposed_.reduce_ns += end - begin;
      record_wait(user, begin, end, trace::Cause::kBufferRecycle);
      ++exposed_.slot_waits;
    }
  }
  user = bundle;
  return zero_gaps(bundle, caller);
}

// Alignment gaps between parameters take part in sums and norms: as zeros.
Status Executor::zero_gaps(int32_t bundle, Stream* caller) {
  const Bundle& b = model_.bundles[at_index(bundle)];
  for (size_t s = 0; s < b.segments.size(); ++s) {
    const Segment& segment = b.segments[s];
    if (!segment.trainable) continue;
    const SegmentPlan& p = plan_.bundles[at_index(bundle)].segments[s];
    int64_t size = dtype_size(p.grad_dtype);
    for (size_t i = 0; i < segment.params.size(); ++i) {
      const Param& param = model_.params[at_index(segment.params[i])];
      int64_t end = param.offset + param.count;
      int64_t next = i + 1 < segment.params.size()
                         ? model_.params[at_index(segment.params[i + 1])].offset
                         : segment.count;
      if (next == end) continue;
      ALQ_TRY(fill(caller, memory_.at(p.grad) + end * size, (next - end) * size,
                   false));
    }
  }
  return {};
}

Status Executor::drain(Deadline deadline) {
  int64_t begin = now_ns();
  ALQ_TRY(device_->synchronize(*gather_stream_, deadline));
  ALQ_TRY(device_->synchronize(*reduce_stream_, deadline));
  ALQ_TRY(device_->synchronize(*updated_, deadline));
  if (asynchronous_) ALQ_TRY(device_->synchronize(*used_, deadline));
  int64_t end = now_ns();
  exposed_.reduce_ns += end - begin;
  record_wait(-1, begin, end, trace::Cause::kDrain);
  return {};
}

void Executor::retire(const std::shared_ptr<void>& self) {
  // The caller's streams may still write this memory.  Waiting streams are
  // behind them, and hold it as long.  Where streams run by themselves, every
  // update is before such a use.
  (void)device_->wait(gather_stream_.get(), *used_, context_->deadline(0));
  if (!asynchronous_) {
    (void)device_->wait(gather_stream_.get(), *updated_, context_->deadline(0));
  }
  for (std::shared_ptr<Stream>* stream : {&gather_stream_, &reduce_stream_}) {
    // Can only fail for want of memory: then there is nothing to keep either.
    if (!device_->pin(**stream, self).ok()) continue;
    stream->reset();
  }
  events_.clear();
  updated_ = used_ = gathers_ = reductions_ = met_ = nullptr;
  groups_ = {};
  device_.reset();
}

void Executor::reset_counters() {
  exposed_ = {};
  traffic_ = {};
}

}  // namespace aliquot::engine
