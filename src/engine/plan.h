// The plan: from the model, the placement and a few choices to the place of
// every byte.  Pure: allocates nothing on a device, the same on every rank.
//
// All memory of a rank lies in one arena, and where ranks of one host reach
// into each other's, in one memory common to them: shards that are mapped, and
// what each rank has whole and others update in part.  Regions are 64-byte
// aligned.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core.h"
#include "engine/model.h"
#include "engine/nesting.h"
#include "engine/placement.h"

namespace aliquot::engine {

// What the engine was created with.
struct EngineConfig {
  Dtype grad_dtype = 0, accumulate_dtype = 0, master_dtype = 0;
  bool accumulate_fast = false;
  bool poison = false;
  double loss_scale = 1;
};

struct Optimizer {
  alq_optimizer_desc desc = {};
  int32_t states() const {
    if (desc.kind == ALQ_OPTIM_ADAMW) return 2;
    return desc.kind == ALQ_OPTIM_SGD && desc.momentum != 0 ? 1 : 0;
  }
};

enum class Owner : int32_t {
  kParam,
  kMaster,
  kSlot,
  kGrad,
  kAccum,
  kState,
  kStaging,
  kCount
};
const char* owner_name(Owner owner);

enum class Home : int32_t {
  kArena,
  kOpen,  // this rank's own, which the other ranks of the shard axis can write
  kCommon,  // the same bytes on all of them
};

// A place in one of a rank's memories; offset -1: there is none.
struct Region {
  int64_t offset = -1;
  Home home = Home::kArena;
  bool exists() const { return offset >= 0; }
};

// Where one segment of a bundle lives on this rank.  "Own" is what this rank
// updates: it has the extent of the optimizer states, or of the parameters if
// frozen.  "Shard" is the shard that own is a part of: own itself, unless its
// extent is kPart.
struct SegmentPlan {
  Dtype dtype = 0, grad_dtype = 0, accum_dtype = 0, master_dtype = 0;
  Dtype state_dtype = 0;
  int64_t count = 0;               // full
  Extent extent = Extent::kWhole;  // of own
  Range own, shard;
  // What this rank's optimizer updates: own, unless the ranks of the shard axis
  // update together, on one host, what each of them has whole.  Each does its
  // shard then, for all: in every rank's own copy of the parameters, which lies
  // in open memory, and in the states, which they have in common.
  bool together = false;
  Range updates;
  bool gathered = false;   // full comes from the shards by a copy
  bool assembled = false;  // the shard comes from the replicas' own parts
  Region full;             // gathered parameters, what the host reads
  Region shard_params;     // what the gather over the shards reads
  Region own_params;       // inside the shard or full, or apart
  Region master;           // own; equals own_params if the same dtype
  Region grad;             // lent gradient views, full
  // Sums over microbatches, level 0 first: in full before the reduction over
  // the shards, or of what it leaves.
  std::vector<Region> local_levels, shard_levels;
  Region sum;      // what the reduction over the shards leaves; level 0
  Region staging;  // whole sums on their way to shard_levels
  Region final;    // own: the step's gradient
  Region state[2];

  // The caller adds each microbatch to the lent view: it is the sum.
  bool sums_in_view() const {
    return !local_levels.empty() && local_levels[0].offset == grad.offset;
  }
};

struct BundlePlan {
  Placement placement;
  bool gathers = false;
  bool map = false;    // the gather over the shards is a mapping
  bool defer = false;  // reduced in the last microbatch only
  int32_t slot = 0, grad_slot = 0;
  std::vector<SegmentPlan> segments;
};

struct Plan {
  alq_plan_desc desc = {};
  PlanPlacement placement;
  DataAxes axes;
  Nesting nesting;
  int32_t microbatches = 1;
  int32_t prefetch = 1, max_open = 1;
  std::vector<BundlePlan> bundles;
  int64_t arena_bytes = 0, open_bytes = 0;  // of this rank
  int64_t common_bytes = 0;  // of the host, shared by the shard axis
  // Of this rank; of common memory its share.
  int64_t by_owner[static_cast<size_t>(Owner::kCount)] = {};
  int64_t gather_bytes = 0, reduce_bytes = 0;  // received per full step

  // This rank's share of everything.
  int64_t total_bytes() const {
    return arena_bytes + open_bytes + common_share();
  }
  int64_t common_share() const {
    return (common_bytes + axes.shards - 1) / axes.shards;
  }
  bool maps() const;  // some bundle does
  bool reaches_peers() const { return open_bytes > 0 || common_bytes > 0; }
  // Too large to stay in the caches from one use to the next.
  bool outgrows_caches() const { return total_bytes() > (int64_t{16} << 20); }
  CoreShape core_shape(const Model& model) const;
};

// `host_shared`: the shard axis can map common memory.
struct PlanInputs {
  const Model* model;
  const EngineConfig* config;
  const std::vector<Optimizer>* optimizers;
  int32_t dp_shard, dp_replicate;
  int32_t shard_index, replica_index;  // on the mesh's axes
  bool host_shared;
};

// The data axes as a plan with this description uses them.
Result<DataAxes> data_axes(const PlanInputs& in, const alq_plan_desc& desc);

// Does this gather fetch the shard's parts from the replicas?  Where the shard
// itself stays at rest, only the first after a change (`changed`) does.
bool assembles_now(const BundlePlan& bundle, const SegmentPlan& segment,
                   bool changed);

// Bytes that this rank receives for one gather of a bundle.
int64_t gather_bytes(const Plan& plan, int32_t bundle, bool changed);
// For one reduction of a bundle over the shards, and for a segment's over the
// replicas, once per step.
int64_t reduce_bytes(const Plan& plan, int32_t bundle);
int64_t replica_reduce_bytes(const Plan& plan, const SegmentPlan& segment);

// Fills the plan's traffic of one step by running the core through it: every
// unit forward, then backward, for each microbatch.
void plan_traffic(const Model& model, Plan* plan);

// The model's bundles must be built for the plan's data axes.
Result<Plan> make_plan(const PlanInputs& in, const alq_plan_desc& desc);

// The error for a plan over its cap: names the cheapest ways to fit.
Status over_cap(const PlanInputs& in, const Plan& plan);

std::string plan_text(const Plan& plan, const Model& model);
std::string plan_json(const Plan& plan, const Model& model);

}  // namespace aliquot::engine
