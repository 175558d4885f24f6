// Traffic of a planned step, counted by the core that will run it.
// Source of the per-operation volumes: gather and reduce-scatter (N-1)/N of the
// full bytes, all-reduce twice that (Rajbhandari et al., ZeRO).
#include "engine/plan.h"

namespace aliquot::engine {

int64_t gather_bytes(const Plan& plan, int32_t bundle) {
  int64_t bytes = 0;
  for (const SegmentPlan& p :
       plan.bundles[static_cast<size_t>(bundle)].segments) {
    if (p.gathered) bytes += (p.count - p.own) * dtype_size(p.dtype);
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
    if (plan.placement.shard_states) {
      bytes += (shards - 1) * p.own * size;
    } else {
      bytes += 2 * (shards - 1) * p.count * size / shards;
    }
  }
  return bytes;
}

void plan_traffic(const Model& model, Plan* plan) {
  plan->gather_bytes = plan->reduce_bytes = 0;
  Core core(plan->core_shape(model));
  auto count = [&](bool reduces) {
    for (const Action& action : core.actions()) {
      if (action.kind == ActionKind::kGather) {
        plan->gather_bytes += gather_bytes(*plan, action.bundle);
      }
      if (action.kind == ActionKind::kReduce && reduces) {
        plan->reduce_bytes += reduce_bytes(*plan, action.bundle);
      }
    }
    core.actions().clear();
  };
  // The first step records the order, the second is like all later ones.
  for (int step = 0; step < 2; ++step) {
    plan->gather_bytes = plan->reduce_bytes = 0;
    for (int32_t m = 0; m < plan->microbatches; ++m) {
      bool reduces = !plan->defer || m + 1 == plan->microbatches;
      core.microbatch_begin(ALQ_TRAIN);
      for (size_t u = 0; u < model.units.size(); ++u) {
        if (model.units[u].root) continue;
        core.unit_begin(static_cast<int32_t>(u), ALQ_PASS_F, false);
        core.unit_end(static_cast<int32_t>(u), ALQ_PASS_F);
        count(reduces);
      }
      for (size_t u = model.units.size(); u-- > 0;) {
        core.unit_begin(static_cast<int32_t>(u), ALQ_PASS_B, true);
        core.unit_end(static_cast<int32_t>(u), ALQ_PASS_B);
        for (int32_t p : model.units[u].params) core.grad_ready(p);
        count(reduces);
      }
      core.microbatch_end();
      count(reduces);
    }
    core.step();
  }
  for (size_t b = 0; b < plan->bundles.size(); ++b) {
    if (plan->axes.replicas == 1) continue;
    for (const SegmentPlan& p : plan->bundles[b].segments) {
      if (p.grad_dtype == 0) continue;
      plan->reduce_bytes += 2 * (plan->axes.replicas - 1) * p.final_count *
                            dtype_size(p.accum_dtype) / plan->axes.replicas;
    }
  }
}

}  // namespace aliquot::engine
