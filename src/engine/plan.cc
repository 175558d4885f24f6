// Decides a plan: what each bundle does.  The regions follow from that.
#include "engine/plan.h"

#include <algorithm>

#include "engine/planner.h"

namespace aliquot::engine {

Status Planner::choose() {
  const alq_plan_desc& desc = plan_.desc;
  plan_.microbatches = desc.microbatches > 0 ? desc.microbatches : 1;
  plan_.prefetch = desc.prefetch == 0 ? 1 : std::max(desc.prefetch, 0);
  plan_.max_open = desc.max_open > 0 ? desc.max_open : 1;
  ALQ_TRY(choose_nesting());
  if (desc.defer < 0 || desc.defer > ALQ_DEFER_LAST) {
    return make_error(ALQ_INVALID_ARGUMENT, "unknown defer {}", desc.defer);
  }
  plan_.bundles.resize(in_.model->bundles.size());
  for (size_t b = 0; b < plan_.bundles.size(); ++b) {
    ALQ_TRY(choose_placement(b));
    BundlePlan& bundle = plan_.bundles[b];
    bundle.defer = desc.defer == ALQ_DEFER_LAST ||
                   (desc.defer == ALQ_DEFER_DEFAULT &&
                    bundle.placement.grads == Extent::kWhole);
  }
  ALQ_TRY(choose_gather());
  for (size_t b = 0; b < plan_.bundles.size(); ++b) {
    BundlePlan& bundle = plan_.bundles[b];
    bundle.segments.resize(in_.model->bundles[b].segments.size());
    for (size_t s = 0; s < bundle.segments.size(); ++s) {
      const Segment& seg = segment(b, s);
      choose_extents(seg, &bundle, &bundle.segments[s]);
      if (!seg.trainable) continue;
      ALQ_TRY(choose_dtypes(seg, &bundle.segments[s]));
      ALQ_TRY(choose_state_dtype(b, seg, &bundle.segments[s]));
      SegmentPlan& p = bundle.segments[s];
      p.together = updates_together(seg, p);
      if (p.together) p.updates = range(seg, Extent::kShard);
    }
  }
  return {};
}

Status Planner::choose_nesting() {
  const alq_plan_desc& desc = plan_.desc;
  ALQ_ASSIGN(plan_.nesting,
             Nesting::parse(desc.nesting == nullptr ? "" : desc.nesting));
  int64_t total = plan_.nesting.total();
  if (total != 0 && total != plan_.microbatches) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "nesting \"{}\" sums {} microbatches but the plan has {} "
                      "per step and rank",
                      desc.nesting, total, plan_.microbatches);
  }
  return {};
}

// Of the bundle's units, which must agree: it is stored once.
Status Planner::choose_placement(size_t b) {
  const std::vector<int32_t>& units = in_.model->bundles[b].units;
  Placement& chosen = plan_.bundles[b].placement;
  for (size_t i = 0; i < units.size(); ++i) {
    const Unit& unit = in_.model->units[static_cast<size_t>(units[i])];
    Placement placement = plan_.placement.usual;
    if (unit.place.has_value()) {
      Result<Placement> own = placement_of(*unit.place, plan_.placement.axes);
      if (!own.ok()) {
        return make_error(own.status().code(), "unit \"{}\": {}", unit.name,
                          own.status().message());
      }
      placement = *own;
    }
    if (plan_.desc.reshard == 2) placement.params = Extent::kWhole;
    if (i == 0) chosen = placement;
    if (placement == chosen) continue;
    int32_t param = in_.model->bundles[b].segments[0].params[0];
    return make_error(
        ALQ_INVALID_ARGUMENT,
        "parameter \"{}\" is tied between units \"{}\" and \"{}\", whose "
        "placements differ; give both the same with alq_unit_place",
        in_.model->params[static_cast<size_t>(param)].name,
        in_.model->units[static_cast<size_t>(units[0])].name, unit.name);
  }
  return {};
}

// Ranks that hold the shards must see one memory, and nothing else may move
// parameters there in the middle of a step.
bool Planner::can_map(const BundlePlan& bundle) const {
  return plan_.axes.shards > 1 && bundle.placement.params == Extent::kShard &&
         in_.host_shared && plan_.desc.memory != ALQ_MEMORY_SLAB;
}

Status Planner::choose_gather() {
  bool must = plan_.desc.gather == ALQ_GATHER_MAP, maps = false;
  for (size_t b = 0; b < plan_.bundles.size(); ++b) {
    BundlePlan& bundle = plan_.bundles[b];
    bundle.map = can_map(bundle) && plan_.desc.gather != ALQ_GATHER_COPY;
    maps = maps || bundle.map;
    if (!must || bundle.map || bundle.placement.params == Extent::kWhole) {
      continue;
    }
    return make_error(ALQ_INVALID_ARGUMENT,
                      "unit {}: gather MAP needs parameters sharded over "
                      "dp_shard alone, its ranks on one host and memory LEND "
                      "or INTO; use AUTO or COPY",
                      in_.model->bundles[b].name);
  }
  if (must && !maps) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "gather MAP needs parameters sharded over ranks of one "
                      "host and memory LEND or INTO; use COPY");
  }
  return {};
}

void Planner::choose_extents(const Segment& seg, BundlePlan* bundle,
                             SegmentPlan* p) const {
  const Placement& placement = bundle->placement;
  p->dtype = seg.dtype;
  p->count = seg.count;
  p->extent = seg.trainable ? placement.states : placement.params;
  p->own = range(seg, p->extent);
  p->shard = range(seg, std::min(p->extent, Extent::kShard));
  p->updates = p->own;
  p->gathered =
      plan_.axes.shards > 1 && p->extent != Extent::kWhole && !bundle->map;
  p->assembled = p->extent == Extent::kPart;
  bundle->gathers = bundle->gathers || p->gathered || p->assembled;
}

// Alone, every rank would do the same update of the same elements.
bool Planner::updates_together(const Segment& seg, const SegmentPlan& p) const {
  bool may = plan_.axes.shards > 1 && p.extent == Extent::kWhole &&
             in_.host_shared && plan_.desc.memory != ALQ_MEMORY_SLAB &&
             plan_.desc.gather != ALQ_GATHER_COPY;
  return may &&
         std::all_of(seg.runs.begin(), seg.runs.end(), [&](const Run& run) {
           auto group = static_cast<size_t>(run.group);
           return (*in_.optimizers)[group].desc.kind != ALQ_OPTIM_NONE;
         });
}

Status Planner::choose_dtypes(const Segment& seg, SegmentPlan* p) const {
  const EngineConfig& config = *in_.config;
  p->grad_dtype = config.grad_dtype != 0 ? config.grad_dtype : seg.dtype;
  p->accum_dtype = config.accumulate_dtype != 0
                       ? config.accumulate_dtype
                       : accumulate_dtype(p->grad_dtype);
  p->master_dtype = config.master_dtype != 0 ? config.master_dtype
                                             : accumulate_dtype(seg.dtype);
  if (dtype_size(p->accum_dtype) < 4 && accumulates()) {
    return make_error(ALQ_UNSUPPORTED,
                      "accumulating {} microbatches in {}: use f32 or f64",
                      plan_.microbatches, dtype_name(p->accum_dtype));
  }
  return {};
}

Status Planner::choose_state_dtype(size_t b, const Segment& seg,
                                   SegmentPlan* p) const {
  for (const Run& run : seg.runs) {
    const Optimizer& o = (*in_.optimizers)[static_cast<size_t>(run.group)];
    if (o.states() == 0) continue;
    Dtype state =
        o.desc.state_dtype != 0 ? o.desc.state_dtype : p->master_dtype;
    if (p->state_dtype != 0 && p->state_dtype != state) {
      return make_error(ALQ_UNSUPPORTED,
                        "unit {}: parameters of one dtype with optimizer "
                        "states in {} and {}; use one state dtype",
                        in_.model->bundles[b].name, dtype_name(p->state_dtype),
                        dtype_name(state));
    }
    p->state_dtype = state;
  }
  return {};
}

const char* owner_name(Owner owner) {
  static constexpr const char* kNames[] = {"parameters", "masters", "slots",
                                           "gradients",  "sums",    "states",
                                           "staging"};
  return kNames[static_cast<size_t>(owner)];
}

bool Plan::maps() const {
  return std::any_of(bundles.begin(), bundles.end(),
                     [](const BundlePlan& b) { return b.map; });
}

bool assembles_now(const BundlePlan& bundle, const SegmentPlan& segment,
                   bool changed) {
  return segment.assembled &&
         (changed || bundle.placement.params == Extent::kPart);
}

CoreShape Plan::core_shape(const Model& model) const {
  CoreShape shape;
  shape.prefetch = prefetch;
  for (size_t b = 0; b < bundles.size(); ++b) {
    CoreShape::Bundle bundle;
    bundle.units = model.bundles[b].units;
    bundle.gathers = bundles[b].gathers;
    bundle.slot = bundles[b].slot;
    bundle.grad_slot = bundles[b].grad_slot;
    bundle.has_frozen = model.bundles[b].has_frozen;
    for (const Segment& segment : model.bundles[b].segments) {
      if (!segment.trainable) continue;
      bundle.trainable.insert(bundle.trainable.end(), segment.params.begin(),
                              segment.params.end());
    }
    shape.slots = std::max(shape.slots, bundle.slot + 1);
    shape.grad_slots = std::max(shape.grad_slots, bundle.grad_slot + 1);
    shape.bundles.push_back(std::move(bundle));
  }
  for (const Unit& unit : model.units) shape.units.push_back(unit.bundles);
  for (const Param& param : model.params) {
    shape.param_bundle.push_back(param.trainable ? param.bundle : -1);
  }
  return shape;
}

Result<DataAxes> data_axes(const PlanInputs& in, const alq_plan_desc& desc) {
  ALQ_ASSIGN(PlanPlacement placement,
             placement_of(desc, in.dp_shard, in.dp_replicate));
  if (placement.axes.two_axes) {
    return DataAxes{in.dp_shard, in.shard_index, in.dp_replicate,
                    in.replica_index};
  }
  return DataAxes{in.dp_shard * in.dp_replicate,
                  in.replica_index * in.dp_shard + in.shard_index, 1, 0};
}

Result<Plan> make_plan(const PlanInputs& in, const alq_plan_desc& desc) {
  Plan plan;
  plan.desc = desc;
  ALQ_ASSIGN(plan.placement, placement_of(desc, in.dp_shard, in.dp_replicate));
  ALQ_ASSIGN(plan.axes, data_axes(in, desc));
  if (desc.reshard == 2) plan.placement.usual.params = Extent::kWhole;
  ALQ_TRY(Planner(in, &plan).run());
  plan_traffic(*in.model, &plan);
  return plan;
}

}  // namespace aliquot::engine
