// The making of a plan: choices per bundle first (plan.cc), then a place for
// every region (plan_regions.cc).
#pragma once

#include "engine/arena.h"

namespace aliquot::engine {

class Planner {
 public:
  Planner(const PlanInputs& in, Plan* plan)
      : in_(in), plan_(*plan), layout_(plan) {}

  Status run();

 private:
  // What several bundles share: gathered parameters, lent gradients, sums on
  // their way.
  struct Rings {
    Ring slots, grads, staging;
  };

  const Segment& segment(size_t b, size_t s) const {
    return in_.model->bundles[b].segments[s];
  }
  bool many() const { return plan_.axes.shards * plan_.axes.replicas > 1; }
  bool accumulates() const { return plan_.microbatches > 1; }
  Range range(const Segment& segment, Extent extent) const {
    return segment.range(extent, plan_.axes.shard_index,
                         plan_.axes.replica_index);
  }

  // Choices.
  Status choose();
  Status choose_nesting();
  Status choose_placement(size_t b);
  Status choose_gather();
  bool can_map(const BundlePlan& bundle) const;
  void choose_extents(const Segment& segment, BundlePlan* bundle,
                      SegmentPlan* p) const;
  bool updates_together(const Segment& segment, const SegmentPlan& p) const;
  Status choose_dtypes(const Segment& segment, SegmentPlan* p) const;
  Status choose_state_dtype(size_t b, const Segment& segment,
                            SegmentPlan* p) const;

  // Regions.
  bool in_ring(size_t b) const;
  bool sums_locally(const BundlePlan& bundle) const;
  bool lent_is_sum(size_t b, const SegmentPlan& p) const;
  bool grads_in_ring(size_t b) const;
  int64_t staging_count(size_t b, const SegmentPlan& p) const;
  void assign_slots();
  void size_rings(Rings* rings) const;
  void place_params(size_t b, size_t s, const Rings& rings, int64_t* at);
  void place_updated(size_t b, size_t s);
  void place_grads(size_t b, size_t s, const Rings& rings, int64_t* at);
  void place_sums(size_t b, const Rings& rings, SegmentPlan* p);

  const PlanInputs& in_;
  Plan& plan_;
  ArenaLayout layout_;
  int32_t ring_slots_ = 0, ring_grads_ = 0;
};

}  // namespace aliquot::engine
