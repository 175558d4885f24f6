// A place for every region of a plan.
//
// Parameters at rest have the extent of the parameters, the optimizer's regions
// that of the states.  Gradient sums: in full where a bundle is reduced in the
// last microbatch only; else of a shard (the replicas are summed last, so that
// is the least that outlives a microbatch), and the own part lies inside.
#include <algorithm>

#include "engine/planner.h"

namespace aliquot::engine {

Status Planner::run() {
  ALQ_TRY(choose());
  assign_slots();
  Rings rings{Ring(static_cast<size_t>(ring_slots_)),
              Ring(static_cast<size_t>(ring_grads_)), Ring(1)};
  size_rings(&rings);
  rings.slots.place(&layout_, Owner::kSlot);
  rings.grads.place(&layout_, Owner::kGrad);
  rings.staging.place(&layout_, Owner::kStaging);
  for (size_t b = 0; b < plan_.bundles.size(); ++b) {
    int64_t param_at = 0, grad_at = 0;
    for (size_t s = 0; s < plan_.bundles[b].segments.size(); ++s) {
      place_params(b, s, rings, &param_at);
      if (!segment(b, s).trainable) continue;
      place_updated(b, s);
      place_grads(b, s, rings, &grad_at);
    }
  }
  constexpr int64_t kMostBytes = int64_t{1} << 56;
  if (layout_.overflowed() || plan_.arena_bytes > kMostBytes ||
      plan_.open_bytes > kMostBytes || plan_.common_bytes > kMostBytes) {
    return make_error(ALQ_RESOURCE_EXHAUSTED,
                      "the plan needs more than 2^56 bytes per rank; check "
                      "the parameters' shapes");
  }
  plan_.arena_bytes = round_up(plan_.arena_bytes, kPage);
  plan_.open_bytes = round_up(plan_.open_bytes, kPage);
  plan_.common_bytes = round_up(plan_.common_bytes, kPage);
  return {};
}

bool Planner::in_ring(size_t b) const {
  const BundlePlan& bundle = plan_.bundles[b];
  return bundle.placement.params != Extent::kWhole && !bundle.map &&
         !in_.model->bundles[b].resident;
}

// Sums over microbatches are kept in full.
bool Planner::sums_locally(const BundlePlan& bundle) const {
  return bundle.defer || !many();
}

// Is the lent view the place where the sum ends as well?  It can be if no other
// bundle's gradients come there before the update.
bool Planner::lent_is_sum(size_t b, const SegmentPlan& p) const {
  const BundlePlan& bundle = plan_.bundles[b];
  if (p.grad_dtype != p.accum_dtype) return false;
  if (!accumulates()) {
    return bundle.placement.grads == Extent::kWhole ||
           in_.model->bundles[b].resident;
  }
  return sums_locally(bundle) && in_.config->accumulate_fast &&
         plan_.nesting.levels() == 1;
}

// Views that are reduced into another place are free again then.
bool Planner::grads_in_ring(size_t b) const {
  if (in_.model->bundles[b].resident) return false;
  const BundlePlan& bundle = plan_.bundles[b];
  for (const SegmentPlan& p : bundle.segments) {
    if (p.accum_dtype != 0 && lent_is_sum(b, p)) return false;
  }
  return true;
}

// Elements that pass through staging: whole sums over the shards that are added
// to what earlier microbatches left; and shards of which each replica keeps a
// part only.
int64_t Planner::staging_count(size_t b, const SegmentPlan& p) const {
  const BundlePlan& bundle = plan_.bundles[b];
  if (p.grad_dtype == 0 || lent_is_sum(b, p)) return 0;
  if (accumulates()) {
    bool whole = p.extent == Extent::kWhole && plan_.axes.shards > 1;
    return whole && !sums_locally(bundle) ? p.count : 0;
  }
  return bundle.placement.grads == Extent::kPart ? p.shard.count : 0;
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

void Planner::size_rings(Rings* rings) const {
  for (size_t b = 0; b < plan_.bundles.size(); ++b) {
    const BundlePlan& bundle = plan_.bundles[b];
    int64_t params = 0, lent = 0;
    for (const SegmentPlan& p : bundle.segments) {
      params += round_up(p.count * dtype_size(p.dtype), kAlign);
      lent += round_up(p.count * dtype_size(p.grad_dtype), kAlign);
      rings->staging.grow(0, staging_count(b, p) * dtype_size(p.accum_dtype));
    }
    if (in_ring(b)) rings->slots.grow(static_cast<size_t>(bundle.slot), params);
    if (grads_in_ring(b)) {
      rings->grads.grow(static_cast<size_t>(bundle.grad_slot), lent);
    }
  }
}

void Planner::place_params(size_t b, size_t s, const Rings& rings,
                           int64_t* at) {
  const BundlePlan& bundle = plan_.bundles[b];
  SegmentPlan& p = plan_.bundles[b].segments[s];
  int64_t bytes = p.count * dtype_size(p.dtype);
  Extent rest = bundle.placement.params;
  if (in_ring(b)) {
    p.full = rings.slots.at(static_cast<size_t>(bundle.slot), *at);
    *at += round_up(bytes, kAlign);
    if (rest == Extent::kPart) {
      p.own_params =
          layout_.take(Owner::kParam, p.own.count * dtype_size(p.dtype));
      p.shard_params = inside(p.full, p.shard.begin, p.dtype);
      return;
    }
    p.shard_params =
        layout_.take(Owner::kParam, p.shard.count * dtype_size(p.dtype));
    p.own_params = inside(p.shard_params, p.own.begin - p.shard.begin, p.dtype);
    return;
  }
  if (bundle.map) {
    p.full = layout_.take(Owner::kParam, bytes, Home::kCommon);
  } else {
    p.full = layout_.take(rest == Extent::kWhole ? Owner::kParam : Owner::kSlot,
                          bytes, p.together ? Home::kOpen : Home::kArena);
  }
  p.shard_params = inside(p.full, p.shard.begin, p.dtype);
  p.own_params = inside(p.full, p.own.begin, p.dtype);
}

void Planner::place_updated(size_t b, size_t s) {
  SegmentPlan& p = plan_.bundles[b].segments[s];
  p.master = p.own_params;
  if (p.master_dtype != p.dtype) {
    p.master =
        layout_.take(Owner::kMaster, p.own.count * dtype_size(p.master_dtype),
                     p.together ? Home::kOpen : Home::kArena);
  }
  int32_t states = 0;
  for (const Run& run : segment(b, s).runs) {
    const Optimizer& o = (*in_.optimizers)[static_cast<size_t>(run.group)];
    states = std::max(states, o.states());
  }
  for (int32_t i = 0; i < states; ++i) {
    p.state[i] =
        layout_.take(Owner::kState, p.own.count * dtype_size(p.state_dtype),
                     p.together ? Home::kCommon : Home::kArena);
  }
}

void Planner::place_grads(size_t b, size_t s, const Rings& rings, int64_t* at) {
  const BundlePlan& bundle = plan_.bundles[b];
  SegmentPlan& p = plan_.bundles[b].segments[s];
  int64_t lent_bytes = p.count * dtype_size(p.grad_dtype);
  if (grads_in_ring(b)) {
    p.grad = rings.grads.at(static_cast<size_t>(bundle.grad_slot), *at);
    *at += round_up(lent_bytes, kAlign);
  } else {
    p.grad = layout_.take(Owner::kGrad, lent_bytes);
  }
  place_sums(b, rings, &p);
}

void Planner::place_sums(size_t b, const Rings& rings, SegmentPlan* p) {
  const BundlePlan& bundle = plan_.bundles[b];
  int64_t size = dtype_size(p->accum_dtype);
  size_t levels = static_cast<size_t>(plan_.nesting.levels());
  bool lent = lent_is_sum(b, *p);
  if (accumulates() && sums_locally(bundle)) {
    for (size_t l = 0; l < levels; ++l) {
      p->local_levels.push_back(
          lent ? p->grad : layout_.take(Owner::kAccum, p->count * size));
    }
  }
  // What is summed in full stays where it was formed.
  if (lent || !p->local_levels.empty()) {
    Region whole = lent ? p->grad : p->local_levels[0];
    p->sum = inside(whole, p->shard.begin, p->accum_dtype);
    p->final = inside(whole, p->own.begin, p->accum_dtype);
    return;
  }
  if (staging_count(b, *p) > 0) p->staging = rings.staging.at(0, 0);
  if (!accumulates() && p->staging.exists()) {
    p->sum = p->staging;
    p->final = layout_.take(Owner::kAccum, p->own.count * size);
    return;
  }
  p->sum = layout_.take(Owner::kAccum, p->shard.count * size);
  p->final = inside(p->sum, p->own.begin - p->shard.begin, p->accum_dtype);
  if (!accumulates()) return;
  p->shard_levels.push_back(p->sum);
  for (size_t l = 1; l < levels; ++l) {
    p->shard_levels.push_back(
        layout_.take(Owner::kAccum, p->shard.count * size));
  }
}

}  // namespace aliquot::engine
