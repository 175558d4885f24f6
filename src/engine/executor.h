// The executor binds the core's actions to a device and groups: gathers go to
// the gather stream and communicator, reductions to their own, so that both
// overlap the caller's compute.  Nothing is allocated after create.
#pragma once

#include <memory>
#include <vector>

#include "base/context.h"
#include "comm/group.h"
#include "engine/memory.h"
#include "engine/plan.h"
#include "engine/step_memory.h"
#include "trace/recorder.h"

namespace aliquot::engine {

// Communicators over the data axes, all made before the first step.
struct DataGroups {
  std::shared_ptr<Group> gather, reduce;  // over the shard axis
  // Over the replicas, null for one: of gradients, and of a shard's parts.
  std::shared_ptr<Group> replicate, assemble;
  std::shared_ptr<Group> exchange;  // all data ranks: scalars, barriers
  // All data ranks, for meeting after the others were aborted.
  std::shared_ptr<Group> leave;

  // What others sum or gather of a failed operation's memory would be wrong.
  void fail_together() const {
    if (assemble != nullptr && gather != nullptr) gather->fail_with(*assemble);
    if (replicate != nullptr && reduce != nullptr) {
      replicate->fail_with(*reduce);
    }
  }
  // Those that steps use.
  std::vector<std::shared_ptr<Group>> all() const {
    std::vector<std::shared_ptr<Group>> out;
    for (const auto& group : {gather, reduce, replicate, assemble, exchange}) {
      if (group != nullptr) out.push_back(group);
    }
    return out;
  }
};

// What the current microbatch asks of reductions.
struct MicrobatchPlace {
  int32_t index = 0;
  bool last = false;
  bool ghost = false;  // of other ranks: nothing of this one
};

// Time the caller's thread waited for communication, and how often, since the
// last reset.
struct ExposedTime {
  int64_t gather_ns = 0, reduce_ns = 0;
  int64_t late_gathers = 0;   // waited for a gather that was not prefetched
  int64_t slow_gathers = 0;   // prefetched, and still not there
  int64_t small_gathers = 0;  // of those, too small to be more than latency
  int64_t slot_waits = 0;     // a gradient slot was still being reduced
};

struct Traffic {
  int64_t gathers = 0, gather_bytes = 0;
  int64_t reductions = 0, reduce_bytes = 0;
};

class Executor {
 public:
  static Result<std::unique_ptr<Executor>> create(
      std::shared_ptr<Context> context, std::shared_ptr<Device> device,
      DataGroups groups, const Model* model, const Plan* plan,
      const EngineConfig* config, trace::Recorder* recorder, StepMemory* step,
      void* slab, Deadline deadline);

  // Executes and clears the actions.
  Status run(std::vector<Action>* actions, Stream* caller,
             MicrobatchPlace place, Deadline deadline);
  // All gathers, reductions and updates issued so far are done.
  Status drain(Deadline deadline);
  // They come before what the caller's stream gets from now on.
  Status order_before(Stream* caller, Deadline deadline);
  // All ranks have decided the step, once `decided` and the same on the others
  // have happened: awaited by `settle_step`, and by the caller's stream.
  Status meet_after(Event& decided);
  Status await_meeting(Stream* caller) {
    return device_->wait(caller, *met_, context_->deadline(0));
  }
  // Before groups are aborted: the last step has come to the same end on all
  // ranks.  An error or the deadline says that it may come to none.
  Status settle_step(Deadline deadline) {
    return device_->synchronize(*met_, deadline);
  }
  // The step taken next has this number: in order with what is queued.
  Status set_steps(int64_t steps);
  // A span that the stream begins and ends when it gets there.
  Result<trace::Span*> begin_span(trace::Span span, Stream* stream);
  Status end_span(trace::Span* span, Stream* stream);
  // What the caller's stream has now changes parameters: gathers, begins and
  // drains wait for it, whichever stream they are called with.
  Status updated_on(Stream* caller) {
    return device_->record(*updated_, caller);
  }
  // The caller's stream has operations on this memory.
  Status used_on(Stream* caller) {
    return caller == nullptr ? Status{} : device_->record(*used_, caller);
  }

  std::byte* param(int32_t id) const;  // full, as the host reads it
  std::byte* grad(int32_t id) const;   // lent view
  std::byte* at(const Region& region) const { return memory_.at(region); }
  std::byte* at_peer(const Region& region, int32_t by) const {
    return memory_.at_peer(region, by);
  }
  const SegmentPlan& segment_of(const Param& param) const;
  // First element of a bundle's segment in the engine-wide numbering.
  int64_t element_base(int32_t bundle, int32_t segment) const {
    return bases_[static_cast<size_t>(bundle)][static_cast<size_t>(segment)];
  }

  Device* device() const { return device_.get(); }
  const DataGroups& groups() const { return groups_; }
  const ExposedTime& exposed() const { return exposed_; }
  const Traffic& traffic() const { return traffic_; }
  // Do the reductions of this segment count its part of the gradient's norm, as
  // Coll::norm says?
  bool norm_on_the_way(const SegmentPlan& segment) const;
  // After the groups were aborted: nothing runs any more, however it ended.
  Status settle(Deadline deadline);
  // Other groups and streams; what was going on is forgotten.
  Status renew(DataGroups groups);
  void reset_counters();
  // The engine is released: what its streams still have keeps `self` (which
  // holds the memory) alive, and nothing else of the rank.
  void retire(const std::shared_ptr<void>& self);
  // Spans from now on belong to this step.
  void set_step(int32_t step) { step_ = step; }

 private:
  struct BundleEvents {
    std::shared_ptr<Event> gathered, reduced, written, read;
    bool prefetched = false;
    int64_t bytes = 0;  // of the last gather
  };

  Executor(std::shared_ptr<Context> context, std::shared_ptr<Device> device,
           DataGroups groups, const Model* model, const Plan* plan,
           const EngineConfig* config, trace::Recorder* recorder,
           StepMemory* step)
      : context_(std::move(context)),
        device_(std::move(device)),
        groups_(std::move(groups)),
        model_(*model),
        plan_(*plan),
        config_(*config),
        recorder_(*recorder),
        step_memory_(*step),
        asynchronous_(device_->asynchronous()) {}

  // What fails on this rank fails where it would be passed on, and steps.
  void link_failures();
  Status make_streams();
  Status execute(const Action& action, Stream* caller, Deadline deadline);
  Status evict(int32_t bundle, Stream* caller);
  Status zero_grad(int32_t id, Stream* caller);
  Status communicate(Group& group, const Coll& coll, Stream* stream);
  Status gather(int32_t bundle, Stream* caller, int32_t flags);
  Status gather_segment(int32_t bundle, size_t segment, bool changed);
  Status await(int32_t bundle, Stream* caller, Deadline deadline);
  Status open_grads(int32_t bundle, Stream* caller, Deadline deadline);
  Status reduce(int32_t bundle, Stream* caller);
  Status reduce_segment(int32_t bundle, size_t segment);
  Status sum_locally(const SegmentPlan& p);
  Status reduce_over_shards(int32_t bundle, size_t segment, const void* src,
                            Dtype dtype);
  Status reduce_whole(const SegmentPlan& p, Coll coll, bool first);
  Status reduce_over_replicas(int32_t bundle, size_t segment);
  Status fold(const std::vector<Region>& levels, const SegmentPlan& p,
              int64_t count);
  Status add(void* dst, Dtype dst_dtype, const void* src, Dtype src_dtype,
             int64_t count, bool first);
  void count_reduction(int32_t bundle);
  Status check_finite(int32_t bundle, size_t segment);
  Status zero_gaps(int32_t bundle, Stream* caller);
  Result<trace::Span*> begin_bundle(trace::Lane lane, int32_t bundle,
                                    int64_t bytes, Stream* stream);
  void record_wait(int32_t bundle, int64_t begin, int64_t end,
                   trace::Cause cause);
  Status fill(Stream* stream, void* dst, int64_t bytes, bool nan);
  template <typename Args>
  Status launch(Stream* stream, kernels::OpCode op, const Args& args) {
    return device_->launch(stream, op, &args, sizeof args);
  }

  std::shared_ptr<Context> context_;
  std::shared_ptr<Device> device_;
  DataGroups groups_;
  const Model& model_;
  const Plan& plan_;
  const EngineConfig& config_;
  trace::Recorder& recorder_;
  StepMemory& step_memory_;
  // Then the host never asks how far streams are: it lets streams wait.
  const bool asynchronous_;
  std::vector<int32_t> names_;  // of bundles, in the recorder
  EngineMemory memory_;
  std::shared_ptr<Stream> gather_stream_, reduce_stream_;
  std::vector<BundleEvents> events_;
  std::shared_ptr<Event> updated_, used_;
  std::shared_ptr<Event> gathers_, reductions_;  // all so far, for order_before
  std::shared_ptr<Event> met_;  // all ranks, after the last step's decision
  // The stream got something since then.
  bool gathering_ = false, reducing_ = false;
  std::vector<int32_t> grad_slot_user_;  // bundle that reduced from it last
  std::vector<std::vector<int64_t>> bases_;
  // Per bundle and segment, as the collectives want them.
  struct Counts {
    std::vector<int64_t> shards, parts;
  };
  std::vector<std::vector<Counts>> counts_;
  MicrobatchPlace place_;
  int32_t step_ = 0;
  ExposedTime exposed_;
  Traffic traffic_;
};

}  // namespace aliquot::engine
