// Traffic of a planned step, counted by the core that will run it.
// Source of the per-operation volumes: gather and reduce-scatter (N-1)/N of the
// full bytes, all-reduce twice that (Rajbhandari et al., ZeRO).
#include "engine/plan.h"

namespace aliquot::engine {

int64_t gather_bytes(const Plan& plan, int32_t bundle, bool changed) {
  const BundlePlan& b = plan.bundles[static_cast<size_t>(bundle)];
  int64_t bytes = 0;
  for (const SegmentPlan& p : b.segments) {
    int64_t count = p.gathered ? p.count - p.shard.count : 0;
    if (assembles_now(b, p, changed)) count += p.shard.count - p.own.count;
    bytes += count * dtype_size(p.dtype);
  }
  return bytes;
}

int64_t reduce_bytes(const Plan& plan, int32_t bundle) {
  int64_t shards = plan.axes.shards, bytes = 0;
  for (const SegmentPlan& p :
       plan.bundles[static_cast<size_t>(bundle)].segments) {
    if (p.grad_dtype == 0 || shards == 1) continue;
    int64_t size =
        dtype_size(p.local_levels.empty() ? p.grad_dtype : p.accum_dtype);
    if (p.extent != Extent::kWhole) {
      bytes += (shards - 1) * p.shard.count * size;
    } else {
      bytes += 2 * (shards - 1) * p.count * size / shards;
    }
  }
  return bytes;
}

int64_t replica_reduce_bytes(const Plan& plan, const SegmentPlan& p) {
  int64_t peers = plan.axes.replicas - 1;
  int64_t size = dtype_size(p.accum_dtype);
  if (p.extent == Extent::kPart) return peers * p.own.count * size;
  return 2 * peers * p.own.count * size / plan.axes.replicas;
}

void plan_traffic(const Model& model, Plan* plan) {
  plan->gather_bytes = plan->reduce_bytes = 0;
  Core core(plan->core_shape(model));
  auto count = [&](bool last) {
    for (const Action& action : core.actions()) {
      size_t b = static_cast<size_t>(action.bundle);
      if (action.kind == ActionKind::kGather) {
        plan->gather_bytes += gather_bytes(*plan, action.bundle,
                                           (action.arg & kGatherChanged) != 0);
      }
      if (action.kind == ActionKind::kReduce &&
          (last || !plan->bundles[b].defer)) {
        plan->reduce_bytes += reduce_bytes(*plan, action.bundle);
      }
    }
    core.actions().clear();
  };
  // The first step records the order, the second is like all later ones.
  for (int step = 0; step < 2; ++step) {
    plan->gather_bytes = plan->reduce_bytes = 0;
    for (int32_t m = 0; m < plan->microbatches; ++m) {
      bool last = m + 1 == plan->microbatches;
      core.microbatch_begin(ALQ_TRAIN);
      for (size_t u = 0; u < model.units.size(); ++u) {
        if (model.units[u].root) continue;
        core.unit_begin(static_cast<int32_t>(u), ALQ_PASS_F, false);
        core.unit_end(static_cast<int32_t>(u), ALQ_PASS_F);
        count(last);
      }
      for (size_t u = model.units.size(); u-- > 0;) {
        core.unit_begin(static_cast<int32_t>(u), ALQ_PASS_B, true);
        core.unit_end(static_cast<int32_t>(u), ALQ_PASS_B);
        for (int32_t p : model.units[u].params) core.grad_ready(p);
        count(last);
      }
      core.microbatch_end();
      count(last);
    }
    core.step();
  }
  if (plan->axes.replicas == 1) return;
  for (const BundlePlan& bundle : plan->bundles) {
    for (const SegmentPlan& p : bundle.segments) {
      if (p.grad_dtype != 0)
        plan->reduce_bytes += replica_reduce_bytes(*plan, p);
    }
  }
}

}  // namespace aliquot::engine
