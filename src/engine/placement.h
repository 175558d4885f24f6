// Placement: where the parameters, gradients and optimizer states of a unit
// live on the data axes.  The whole ladder from DDP to FSDP and HSDP is this
// struct; nothing below the preset table knows the names.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace aliquot::engine {

// The data axes as a plan sees them: dp_shard and dp_replicate of the mesh, or
// both flattened to one axis of shards without replicas.
struct DataAxes {
  int32_t shards = 1, shard_index = 0;
  int32_t replicas = 1, replica_index = 0;
};

// How much of a state one rank keeps.  Each extent lies within the one before.
enum class Extent : int32_t {
  kWhole,  // all of it, as every data rank does
  kShard,  // its part over the shards, as its replicas do
  kPart,   // its part over the replicas of that shard, alone
};
const char* extent_name(Extent extent);

// States are sharded at least as far as gradients, these as parameters.
struct Placement {
  Extent params = Extent::kWhole;
  Extent grads = Extent::kWhole;
  Extent states = Extent::kWhole;

  bool operator==(const Placement&) const = default;
};

// A placement as the ABI writes it: ALQ_AXIS_* per state.
struct AxisMasks {
  uint32_t params = 0, grads = 0, states = 0;
};
// Known axes, in the order of the states?
Status check_masks(const AxisMasks& masks);

// The data axes' sizes in the mesh, and whether the plan keeps them apart.
struct AxisUse {
  int32_t dp_shard = 1, dp_replicate = 1;
  bool two_axes = false;

  int32_t shards() const {
    return two_axes ? dp_shard : dp_shard * dp_replicate;
  }
  int32_t replicas() const { return two_axes ? dp_replicate : 1; }
};

// Axes of one rank are as good as none: what is sharded over them is whole.
Result<Placement> placement_of(const AxisMasks& masks, const AxisUse& axes);

// What a strategy means on a mesh.
struct PlanPlacement {
  Placement usual;  // of units that were given none of their own
  AxisUse axes;
};
// From the strategy or, for CUSTOM, the axis masks.
Result<PlanPlacement> placement_of(const alq_plan_desc& desc, int32_t dp_shard,
                                   int32_t dp_replicate);

const char* strategy_name(int32_t strategy);

}  // namespace aliquot::engine
