#include "engine/placement.h"

namespace aliquot::engine {

namespace {

struct Preset {
  int32_t strategy;
  const char* name;
  Placement placement;
};

constexpr Preset kPresets[] = {
    {ALQ_STRATEGY_SINGLE, "single", {false, false, false, false}},
    {ALQ_STRATEGY_DDP, "ddp", {false, false, false, false}},
    {ALQ_STRATEGY_ZERO1, "zero1", {false, false, true, false}},
    {ALQ_STRATEGY_ZERO2, "zero2", {false, true, true, false}},
    {ALQ_STRATEGY_FSDP, "fsdp", {true, true, true, false}},
    {ALQ_STRATEGY_HSDP, "hsdp", {true, true, true, true}},
};

Result<Placement> custom(const alq_plan_desc& desc) {
  for (uint32_t mask : {desc.param_axes, desc.grad_axes, desc.state_axes}) {
    if ((mask & ~(ALQ_AXIS_DP_SHARD | ALQ_AXIS_DP_REPLICATE)) != 0) {
      return make_error(ALQ_INVALID_ARGUMENT, "unknown axis in mask {:#x}",
                        mask);
    }
    if ((mask & ALQ_AXIS_DP_REPLICATE) != 0) {
      return make_error(ALQ_UNSUPPORTED,
                        "sharding a state over dp_replicate is not built yet; "
                        "use a mesh whose dp_shard axis covers those ranks");
    }
  }
  Placement p;
  p.shard_params = desc.param_axes != 0;
  p.shard_grads = desc.grad_axes != 0;
  p.shard_states = desc.state_axes != 0;
  p.two_axes = true;
  if ((p.shard_params && !p.shard_grads) ||
      (p.shard_grads && !p.shard_states)) {
    return make_error(ALQ_UNSUPPORTED,
                      "a state may be sharded only if those after it in the "
                      "order parameters, gradients, optimizer states are too");
  }
  return p;
}

}  // namespace

Result<Placement> placement_of(const alq_plan_desc& desc, int32_t dp_shard,
                               int32_t dp_replicate) {
  int32_t strategy = desc.strategy;
  int32_t ranks = dp_shard * dp_replicate;
  if (strategy == ALQ_STRATEGY_CUSTOM) return custom(desc);
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
    if (preset.strategy == strategy) return preset.placement;
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
