// Placement: where the parameters, gradients and optimizer states of a unit
// live on the data axes.  The whole ladder from DDP to FSDP and HSDP is this
// struct; nothing below the preset table knows the names.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace aliquot::engine {

// The data axes as the engine sees them.  Each state is either replicated over
// both, or sharded over the shard axis and replicated over the other.
struct DataAxes {
  int32_t shards = 1, shard_index = 0;
  int32_t replicas = 1, replica_index = 0;
};

struct Placement {
  bool shard_params = false;
  bool shard_grads = false;
  bool shard_states = false;
  // Replicas have a mesh axis of their own (HSDP); else both data axes are one
  // flattened shard axis.
  bool two_axes = false;
};

// From the strategy or, for CUSTOM, the axis masks.
Result<Placement> placement_of(const alq_plan_desc& desc, int32_t dp_shard,
                               int32_t dp_replicate);

const char* strategy_name(int32_t strategy);

}  // namespace aliquot::engine
