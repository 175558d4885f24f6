#include "engine/placement.h"

namespace aliquot::engine {

namespace {

constexpr Extent kWhole = Extent::kWhole, kShard = Extent::kShard;

struct Preset {
  int32_t strategy;
  const char* name;
  Placement placement;
  bool two_axes;
};

constexpr Preset kPresets[] = {
    {ALQ_STRATEGY_SINGLE, "single", {kWhole, kWhole, kWhole}, false},
    {ALQ_STRATEGY_DDP, "ddp", {kWhole, kWhole, kWhole}, false},
    {ALQ_STRATEGY_ZERO1, "zero1", {kWhole, kWhole, kShard}, false},
    {ALQ_STRATEGY_ZERO2, "zero2", {kWhole, kShard, kShard}, false},
    {ALQ_STRATEGY_FSDP, "fsdp", {kShard, kShard, kShard}, false},
    {ALQ_STRATEGY_HSDP, "hsdp", {kShard, kShard, kShard}, true},
};

Extent fitted(Extent extent, const AxisUse& axes) {
  if (extent == Extent::kPart && axes.replicas() == 1) extent = kShard;
  if (extent == kShard && axes.shards() == 1) extent = kWhole;
  return extent;
}

Result<Extent> extent_of(uint32_t mask, const AxisUse& axes) {
  uint32_t there = (axes.dp_shard > 1 ? ALQ_AXIS_DP_SHARD : 0) |
                   (axes.dp_replicate > 1 ? ALQ_AXIS_DP_REPLICATE : 0);
  mask &= there;
  if (mask == 0) return kWhole;
  if (!axes.two_axes) {
    if (mask == there) return kShard;
    return make_error(ALQ_INVALID_ARGUMENT,
                      "axis mask {:#x}: the strategy uses dp_replicate {} x "
                      "dp_shard {} as one axis; name both or none, or plan "
                      "with strategy HSDP or CUSTOM",
                      mask, axes.dp_replicate, axes.dp_shard);
  }
  if (mask == ALQ_AXIS_DP_SHARD) return kShard;
  if (mask == there) return Extent::kPart;
  return make_error(ALQ_UNSUPPORTED,
                    "axis mask {:#x}: a state is sharded over dp_replicate {} "
                    "only together with dp_shard {}; name both, or use a mesh "
                    "whose dp_shard covers those ranks",
                    mask, axes.dp_replicate, axes.dp_shard);
}

Result<PlanPlacement> custom(const alq_plan_desc& desc, AxisUse axes) {
  axes.two_axes = true;
  PlanPlacement plan;
  plan.axes = axes;
  AxisMasks masks{desc.param_axes, desc.grad_axes, desc.state_axes};
  ALQ_ASSIGN(plan.usual, placement_of(masks, axes));
  return plan;
}

}  // namespace

const char* extent_name(Extent extent) {
  static constexpr const char* kNames[] = {"whole", "shard", "part of shard"};
  return kNames[static_cast<size_t>(extent)];
}

Status check_masks(const AxisMasks& masks) {
  for (uint32_t mask : {masks.params, masks.grads, masks.states}) {
    if ((mask & ~(ALQ_AXIS_DP_SHARD | ALQ_AXIS_DP_REPLICATE)) != 0) {
      return make_error(ALQ_INVALID_ARGUMENT, "unknown axis in mask {:#x}",
                        mask);
    }
  }
  if ((masks.params & ~masks.grads) == 0 &&
      (masks.grads & ~masks.states) == 0) {
    return {};
  }
  return make_error(ALQ_UNSUPPORTED,
                    "axis masks {:#x}, {:#x}, {:#x}: a state may be sharded "
                    "over an axis only if those after it in the order "
                    "parameters, gradients, optimizer states are too",
                    masks.params, masks.grads, masks.states);
}

Result<Placement> placement_of(const AxisMasks& masks, const AxisUse& axes) {
  ALQ_TRY(check_masks(masks));
  Placement placement;
  ALQ_ASSIGN(placement.params, extent_of(masks.params, axes));
  ALQ_ASSIGN(placement.grads, extent_of(masks.grads, axes));
  ALQ_ASSIGN(placement.states, extent_of(masks.states, axes));
  return placement;
}

Result<PlanPlacement> placement_of(const alq_plan_desc& desc, int32_t dp_shard,
                                   int32_t dp_replicate) {
  int32_t strategy = desc.strategy;
  int32_t ranks = dp_shard * dp_replicate;
  AxisUse axes{dp_shard, dp_replicate, false};
  if (strategy == ALQ_STRATEGY_CUSTOM) return custom(desc, axes);
  if (strategy == ALQ_STRATEGY_DEFAULT) {
    strategy = ranks == 1 ? ALQ_STRATEGY_SINGLE : ALQ_STRATEGY_FSDP;
  }
  if (strategy == ALQ_STRATEGY_SINGLE && ranks != 1) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "strategy single needs one data rank but the mesh has "
                      "dp_replicate {} x dp_shard {}; choose another strategy",
                      dp_replicate, dp_shard);
  }
  for (const Preset& preset : kPresets) {
    if (preset.strategy != strategy) continue;
    axes.two_axes = preset.two_axes;
    const Placement& p = preset.placement;
    return PlanPlacement{
        {fitted(p.params, axes), fitted(p.grads, axes), fitted(p.states, axes)},
        axes};
  }
  return make_error(ALQ_INVALID_ARGUMENT, "unknown strategy {}", strategy);
}

const char* strategy_name(int32_t strategy) {
  for (const Preset& preset : kPresets) {
    if (preset.strategy == strategy) return preset.name;
  }
  return strategy == ALQ_STRATEGY_CUSTOM ? "custom" : "default";
}

}  // namespace aliquot::engine
