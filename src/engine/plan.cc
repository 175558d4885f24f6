// Decides a plan: choices first, then a place for every region.
#include "engine/plan.h"

#include <algorithm>

namespace aliquot::engine {

namespace {

constexpr int64_t kAlign = 64;
constexpr int64_t kPage = 4096;

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Hands out consecutive places of the arena and of common memory.
class Layout {
 public:
  explicit Layout(Plan* plan) : plan_(plan) {}

  bool overflowed() const { return overflowed_; }

  Region take(Owner owner, int64_t bytes) {
    if (!fits(bytes)) return {0, false};
    Region region{plan_->arena_bytes, false};
    int64_t size = round_up(bytes, kAlign);
    plan_->arena_bytes += size;
    plan_->by_owner[static_cast<size_t>(owner)] += size;
    return region;
  }

  Region take_common(int64_t bytes) {
    if (!fits(bytes)) return {0, true};
    Region region{plan_->common_bytes, true};
    plan_->common_bytes += round_up(bytes, kAlign);
    return region;
  }

 private:
  bool fits(int64_t bytes) {
    constexpr int64_t kMost = int64_t{1} << 57;
    overflowed_ = overflowed_ || bytes < 0 || bytes > kMost ||
                  plan_->arena_bytes > kMost || plan_->common_bytes > kMost;
    return !overflowed_;
  }

  Plan* plan_;
  bool overflowed_ = false;
};

Region inside(Region region, int64_t elements, Dtype dtype) {
  region.offset += elements * dtype_size(dtype);
  return region;
}

// Slots of a ring: each as large as the largest bundle that uses it.
class Ring {
 public:
  explicit Ring(size_t slots) : bytes_(slots, 0), offset_(slots, 0) {}

  // Reserves room for one bundle; returns its segments' offsets in the slot.
  void grow(size_t slot, int64_t bytes) {
    bytes_[slot] = std::max(bytes_[slot], bytes);
  }
  void place(Layout* layout, Owner owner) {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      offset_[i] = layout->take(owner, bytes_[i]).offset;
    }
  }
  Region at(size_t slot, int64_t offset) const {
    return {offset_[slot] + offset, false};
  }

 private:
  std::vector<int64_t> bytes_, offset_;
};

class Planner {
 public:
  Planner(const PlanInputs& in, Plan* plan)
      : in_(in), plan_(*plan), layout_(plan) {}

  Status run() {
    ALQ_TRY(choose());
    ALQ_TRY(choose_dtypes());
    assign_slots();
    Ring slots(static_cast<size_t>(ring_slots_));
    Ring grads(static_cast<size_t>(ring_grads_));
    size_rings(&slots, &grads);
    slots.place(&layout_, Owner::kSlot);
    grads.place(&layout_, Owner::kGrad);
    for (size_t b = 0; b < plan_.bundles.size(); ++b) {
      int64_t param_at = 0, grad_at = 0;
      for (size_t s = 0; s < plan_.bundles[b].segments.size(); ++s) {
        place_params(b, s, slots, &param_at);
        if (segment(b, s).trainable) place_grads(b, s, grads, &grad_at);
      }
    }
    constexpr int64_t kMostBytes = int64_t{1} << 56;
    if (layout_.overflowed() || plan_.arena_bytes > kMostBytes ||
        plan_.common_bytes > kMostBytes) {
      return make_error(ALQ_RESOURCE_EXHAUSTED,
                        "the plan needs more than 2^56 bytes per rank; check "
                        "the parameters' shapes");
    }
    plan_.arena_bytes = round_up(plan_.arena_bytes, kPage);
    plan_.common_bytes = round_up(plan_.common_bytes, kPage);
    return {};
  }

 private:
  const Segment& segment(size_t b, size_t s) const {
    return in_.model->bundles[b].segments[s];
  }
  bool many() const { return plan_.axes.shards * plan_.axes.replicas > 1; }
  bool split() const { return plan_.axes.shards > 1; }

  // Is the segment's own part smaller than the whole?
  bool owns_part(const Segment& s) const {
    return split() && (plan_.placement.shard_params ||
                       (s.trainable && plan_.placement.shard_states));
  }
  bool in_ring(size_t b) const {
    return split() && plan_.placement.shard_params && !plan_.map &&
           !in_.model->bundles[b].resident;
  }
  // Sums over microbatches are kept locally, in full.
  bool sums_locally() const { return plan_.defer || !many(); }
  bool accumulates() const { return plan_.microbatches > 1; }

  // Is the lent view the place where the sum ends as well?
  bool lent_is_sum(const SegmentPlan& p) const {
    if (p.grad_dtype != p.accum_dtype) return false;
    if (!accumulates()) return !plan_.placement.shard_grads || !many();
    return sums_locally() && in_.config->accumulate_fast &&
           plan_.nesting.levels() == 1;
  }
  bool grads_in_ring(size_t b) const {
    if (in_.model->bundles[b].resident) return false;
    for (const SegmentPlan& p : plan_.bundles[b].segments) {
      if (p.accum_dtype != 0 && lent_is_sum(p)) return false;
    }
    bool full_elsewhere = sums_locally() && accumulates();
    return (many() && plan_.placement.shard_grads) || full_elsewhere ||
           !many();
  }

  Status choose();
  Status choose_dtypes();
  void assign_slots();
  void size_rings(Ring* slots, Ring* grads);
  void place_params(size_t b, size_t s, const Ring& slots, int64_t* at);
  void place_grads(size_t b, size_t s, const Ring& grads, int64_t* at);

  const PlanInputs& in_;
  Plan& plan_;
  Layout layout_;
  int32_t ring_slots_ = 0, ring_grads_ = 0;
};

Status Planner::choose() {
  const alq_plan_desc& desc = plan_.desc;
  plan_.microbatches = desc.microbatches > 0 ? desc.microbatches : 1;
  plan_.prefetch = desc.prefetch == 0 ? 1 : std::max(desc.prefetch, 0);
  plan_.max_open = desc.max_open > 0 ? desc.max_open : 1;
  ALQ_ASSIGN(plan_.nesting,
             Nesting::parse(desc.nesting == nullptr ? "" : desc.nesting));
  int64_t total = plan_.nesting.total();
  if (total != 0 && total != plan_.microbatches) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "nesting \"{}\" sums {} microbatches but the plan has {} "
                      "per step and rank",
                      desc.nesting, total, plan_.microbatches);
  }
  if (desc.defer < 0 || desc.defer > ALQ_DEFER_LAST) {
    return make_error(ALQ_INVALID_ARGUMENT, "unknown defer {}", desc.defer);
  }
  plan_.defer = desc.defer == ALQ_DEFER_LAST ||
                (desc.defer == ALQ_DEFER_DEFAULT &&
                 !plan_.placement.shard_grads);
  if (!plan_.defer && many() && !plan_.placement.shard_states &&
      accumulates()) {
    return make_error(ALQ_UNSUPPORTED,
                      "replicated gradients are reduced in the last microbatch "
                      "only; use ALQ_DEFER_LAST");
  }
  if (desc.reshard == 2) plan_.placement.shard_params = false;
  bool can_map = split() && plan_.placement.shard_params && in_.host_shared &&
                 desc.memory != ALQ_MEMORY_SLAB;
  if (desc.gather == ALQ_GATHER_MAP && !can_map) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "gather MAP needs parameters sharded over ranks of one "
                      "host and memory LEND or INTO; use COPY");
  }
  plan_.map = can_map && desc.gather != ALQ_GATHER_COPY;
  return {};
}

Status Planner::choose_dtypes() {
  const EngineConfig& config = *in_.config;
  plan_.bundles.resize(in_.model->bundles.size());
  for (size_t b = 0; b < plan_.bundles.size(); ++b) {
    plan_.bundles[b].segments.resize(in_.model->bundles[b].segments.size());
    for (size_t s = 0; s < plan_.bundles[b].segments.size(); ++s) {
      const Segment& seg = segment(b, s);
      SegmentPlan& p = plan_.bundles[b].segments[s];
      p.dtype = seg.dtype;
      p.count = seg.count;
      bool part = owns_part(seg);
      p.begin = part ? seg.shard_begin(plan_.axes.shard_index) : 0;
      p.own = part ? seg.shard_count(plan_.axes.shard_index) : seg.count;
      p.split = part;
      p.gathered = part && !plan_.map;
      plan_.bundles[b].gathers = plan_.bundles[b].gathers || p.gathered;
      if (!seg.trainable) continue;
      p.grad_dtype = config.grad_dtype != 0 ? config.grad_dtype : seg.dtype;
      p.accum_dtype = config.accumulate_dtype != 0
                          ? config.accumulate_dtype
                          : accumulate_dtype(p.grad_dtype);
      p.master_dtype = config.master_dtype != 0 ? config.master_dtype
                                                : accumulate_dtype(seg.dtype);
      if (dtype_size(p.accum_dtype) < 4 && accumulates()) {
        return make_error(ALQ_UNSUPPORTED,
                          "accumulating {} microbatches in {}: use f32 or f64",
                          plan_.microbatches, dtype_name(p.accum_dtype));
      }
      for (const Run& run : seg.runs) {
        const Optimizer& o =
            (*in_.optimizers)[static_cast<size_t>(run.group)];
        Dtype state = o.desc.state_dtype != 0 ? o.desc.state_dtype
                                              : p.master_dtype;
        if (p.state_dtype != 0 && o.states() > 0 && p.state_dtype != state) {
          return make_error(ALQ_UNSUPPORTED,
                            "unit {}: parameters of one dtype with optimizer "
                            "states in {} and {}; use one state dtype",
                            in_.model->bundles[b].name,
                            dtype_name(p.state_dtype), dtype_name(state));
        }
        if (o.states() > 0) p.state_dtype = state;
      }
    }
  }
  return {};
}

void Planner::assign_slots() {
  int32_t ring = 0, ring_grads = 0;
  for (size_t b = 0; b < plan_.bundles.size(); ++b) {
    ring += in_ring(b) ? 1 : 0;
    ring_grads += grads_in_ring(b) ? 1 : 0;
  }
  bool all = (plan_.desc.phases & ALQ_PHASE_HOLD_ALL) != 0;
  ring_slots_ = all ? ring : std::min(ring, plan_.prefetch + plan_.max_open);
  ring_grads_ = std::min(ring_grads, plan_.max_open + 1);
  int32_t nth = 0, nth_grad = 0;
  int32_t own = ring_slots_, own_grad = ring_grads_;
  for (size_t b = 0; b < plan_.bundles.size(); ++b) {
    BundlePlan& bundle = plan_.bundles[b];
    bundle.slot = in_ring(b) ? nth++ % ring_slots_ : own++;
    bundle.grad_slot = grads_in_ring(b) ? nth_grad++ % ring_grads_ : own_grad++;
  }
}

void Planner::size_rings(Ring* slots, Ring* grads) {
  for (size_t b = 0; b < plan_.bundles.size(); ++b) {
    int64_t params = 0, lent = 0;
    for (const SegmentPlan& p : plan_.bundles[b].segments) {
      params += round_up(p.count * dtype_size(p.dtype), kAlign);
      lent += round_up(p.count * dtype_size(p.grad_dtype), kAlign);
    }
    if (in_ring(b)) slots->grow(static_cast<size_t>(plan_.bundles[b].slot), params);
    if (grads_in_ring(b)) {
      grads->grow(static_cast<size_t>(plan_.bundles[b].grad_slot), lent);
    }
  }
}

void Planner::place_params(size_t b, size_t s, const Ring& slots, int64_t* at) {
  SegmentPlan& p = plan_.bundles[b].segments[s];
  int64_t bytes = p.count * dtype_size(p.dtype);
  bool part = owns_part(segment(b, s));
  if (in_ring(b)) {
    p.full = slots.at(static_cast<size_t>(plan_.bundles[b].slot), *at);
    *at += round_up(bytes, kAlign);
    p.shard = layout_.take(Owner::kParam, p.own * dtype_size(p.dtype));
  } else {
    if (part && plan_.map) {
      p.full = layout_.take_common(bytes);
    } else {
      bool at_rest = !(part && plan_.placement.shard_params);
      p.full = layout_.take(at_rest ? Owner::kParam : Owner::kSlot, bytes);
    }
    p.shard = inside(p.full, p.begin, p.dtype);
  }
  if (!segment(b, s).trainable) return;
  p.master = p.shard;
  if (p.master_dtype != p.dtype) {
    p.master = layout_.take(Owner::kMaster, p.own * dtype_size(p.master_dtype));
  }
  int32_t states = 0;
  for (const Run& run : segment(b, s).runs) {
    const Optimizer& o = (*in_.optimizers)[static_cast<size_t>(run.group)];
    states = std::max(states, o.states());
  }
  for (int32_t i = 0; i < states; ++i) {
    p.state[i] =
        layout_.take(Owner::kState, p.own * dtype_size(p.state_dtype));
  }
}

void Planner::place_grads(size_t b, size_t s, const Ring& grads, int64_t* at) {
  SegmentPlan& p = plan_.bundles[b].segments[s];
  int64_t lent_bytes = p.count * dtype_size(p.grad_dtype);
  int64_t sum_size = dtype_size(p.accum_dtype);
  p.final_count = p.own;

  if (grads_in_ring(b)) {
    p.grad = grads.at(static_cast<size_t>(plan_.bundles[b].grad_slot), *at);
    *at += round_up(lent_bytes, kAlign);
  } else {
    p.grad = layout_.take(Owner::kGrad, lent_bytes);
  }

  size_t levels = static_cast<size_t>(plan_.nesting.levels());
  if (sums_locally() && accumulates()) {
    for (size_t l = 0; l < levels; ++l) {
      p.local_levels.push_back(
          lent_is_sum(p) ? p.grad
                         : layout_.take(Owner::kAccum, p.count * sum_size));
    }
    // The whole sum, or the own part of it, ends where it was formed.
    p.final = inside(p.local_levels[0], p.begin, p.accum_dtype);
    return;
  }
  if (lent_is_sum(p)) {
    p.final = inside(p.grad, p.begin, p.accum_dtype);
    return;
  }
  p.final = layout_.take(Owner::kAccum, p.final_count * sum_size);
  if (!accumulates()) return;
  p.shard_levels.push_back(p.final);
  for (size_t l = 1; l < levels; ++l) {
    p.shard_levels.push_back(
        layout_.take(Owner::kAccum, p.final_count * sum_size));
  }
}

}  // namespace

const char* owner_name(Owner owner) {
  static constexpr const char* kNames[] = {"parameters", "masters", "slots",
                                           "gradients",  "sums",    "states",
                                           "staging"};
  return kNames[static_cast<size_t>(owner)];
}

int64_t Plan::total_bytes() const {
  int64_t share = (common_bytes + axes.shards - 1) / axes.shards;
  return arena_bytes + (map ? share : 0);
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

Result<Plan> make_plan(const PlanInputs& in, const alq_plan_desc& desc) {
  Plan plan;
  plan.desc = desc;
  ALQ_ASSIGN(plan.placement,
             placement_of(desc, in.dp_shard, in.dp_replicate));
  if (plan.placement.two_axes) {
    plan.axes = {in.dp_shard, in.shard_index, in.dp_replicate,
                 in.replica_index};
  } else {
    plan.axes = {in.dp_shard * in.dp_replicate,
                 in.replica_index * in.dp_shard + in.shard_index, 1, 0};
  }
  ALQ_TRY(Planner(in, &plan).run());
  plan_traffic(*in.model, &plan);
  return plan;
}

}  // namespace aliquot::engine
