#include "engine/core.h"

#include <algorithm>
#include <utility>

namespace aliquot::engine {

namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

// Unit begins remembered per microbatch; longer ones prefetch only their head.
constexpr size_t kTraceCapacity = 16384;
// Places of the order that one prefetch looks at.
constexpr size_t kLookahead = 64;

}  // namespace

Core::Core(CoreShape shape) : shape_(std::move(shape)) {
  units_.resize(shape_.units.size());
  bundles_.resize(shape_.bundles.size());
  params_.resize(shape_.param_bundle.size());
  slot_owner_.assign(at(shape_.slots), -1);
  grad_owner_.assign(at(shape_.grad_slots), -1);
  for (size_t b = 0; b < bundles_.size(); ++b) {
    // What is never gathered is always there.
    bundles_[b].fresh = !shape_.bundles[b].gathers;
    stale_ += bundles_[b].fresh ? 0 : 1;
    if (bundles_[b].fresh) {
      slot_owner_[at(shape_.bundles[b].slot)] = static_cast<int32_t>(b);
    }
  }
  size_t bound = std::min<size_t>(kTraceCapacity, 64 * units_.size() + 64);
  for (Trace& trace : traces_) {
    trace.order.reserve(bound);
    trace.recording.reserve(bound);
  }
  actions_.reserve(8 * bundles_.size() + params_.size() + 8);
}

void Core::act(ActionKind kind, int32_t bundle, int32_t arg) {
  actions_.push_back({kind, bundle, arg});
}

bool Core::needed(int32_t bundle) const {
  const BundleState& state = bundles_[at(bundle)];
  for (int32_t u : shape_.bundles[at(bundle)].units) {
    const UnitState& unit = units_[at(u)];
    if (unit.holds > 0 || unit.open[ALQ_PASS_F] > 0 ||
        unit.open[ALQ_PASS_F_NOGRAD] > 0) {
      return true;
    }
    if (!state.final_grads &&
        (unit.open[ALQ_PASS_R] > 0 || unit.open[ALQ_PASS_B] > 0)) {
      return true;
    }
  }
  return false;
}

int32_t Core::unit_that_needs(int32_t bundle) const {
  return shape_.bundles[at(bundle)].units.front();
}

// A bundle that is prefetched and not begun yet keeps its slot as well.
bool Core::holds_slot(int32_t bundle) const {
  const BundleState& state = bundles_[at(bundle)];
  return needed(bundle) ||
         (state.fresh && !state.awaited && shape_.bundles[at(bundle)].gathers);
}

int32_t Core::needed() const {
  int32_t count = 0;
  for (size_t b = 0; b < bundles_.size(); ++b) {
    count += needed(static_cast<int32_t>(b)) ? 1 : 0;
  }
  return count;
}

bool Core::resident(int32_t bundle) const {
  return bundles_[at(bundle)].fresh &&
         slot_owner_[at(shape_.bundles[at(bundle)].slot)] == bundle;
}

// All bundles of the unit can have their slots: none is needed by another.
CoreError Core::check_slots(int32_t unit) const {
  for (int32_t b : shape_.units[at(unit)]) {
    int32_t owner = slot_owner_[at(shape_.bundles[at(b)].slot)];
    if (owner >= 0 && owner != b && needed(owner)) {
      return {CoreCode::kSlotBusy, unit_that_needs(owner)};
    }
  }
  return {};
}

CoreError Core::check_grad_slot(int32_t bundle) const {
  int32_t owner = grad_owner_[at(shape_.bundles[at(bundle)].grad_slot)];
  if (owner >= 0 && owner != bundle &&
      bundles_[at(owner)].window == Window::kCollecting) {
    return {CoreCode::kGradSlotBusy, unit_that_needs(owner)};
  }
  return {};
}

void Core::set_fresh(int32_t bundle, bool fresh) {
  BundleState& state = bundles_[at(bundle)];
  if (state.fresh == fresh) return;
  state.fresh = fresh;
  stale_ += fresh ? -1 : 1;
}

void Core::bring(int32_t bundle, bool prefetched) {
  int32_t& owner = slot_owner_[at(shape_.bundles[at(bundle)].slot)];
  if (owner >= 0 && owner != bundle) {
    act(ActionKind::kEvict, owner, bundle);
    set_fresh(owner, false);
  }
  owner = bundle;
  set_fresh(bundle, true);
  BundleState& state = bundles_[at(bundle)];
  state.awaited = false;
  act(ActionKind::kGather, bundle,
      (prefetched ? kGatherPrefetched : 0) |
          (state.changed ? kGatherChanged : 0));
  state.changed = false;
  ++gathers_;
  prefetches_ += prefetched ? 1 : 0;
}

CoreError Core::microbatch_begin(int32_t mode) {
  if (in_microbatch_) return {CoreCode::kInMicrobatch};
  in_microbatch_ = true;
  mode_ = mode;
  Trace& trace = traces_[mode == ALQ_EVAL];
  trace.recording.clear();
  trace.at = 0;
  for (BundleState& state : bundles_) {
    state.window = Window::kIdle;
    state.ready = 0;
    state.final_grads = false;
  }
  for (ParamState& param : params_) param = {};
  prefetch();
  return {};
}

// Finds the unit's place in the recorded order: next, else the nearest later,
// else from the start.
void Core::follow_trace(int32_t unit) {
  Trace& trace = traces_[mode_ == ALQ_EVAL];
  if (trace.recording.size() < trace.recording.capacity()) {
    trace.recording.push_back(unit);
  }
  if (trace.order.empty()) return;
  auto from = trace.order.begin() +
              static_cast<ptrdiff_t>(std::min(trace.at, trace.order.size()));
  auto it = std::find(from, trace.order.end(), unit);
  if (it == trace.order.end()) {
    it = std::find(trace.order.begin(), from, unit);
    if (it == from) {  // not in the order at all: stay where we are
      ++repairs_;
      return;
    }
    ++repairs_;
  } else if (it != from) {
    ++repairs_;
  }
  trace.at = static_cast<size_t>(it - trace.order.begin()) + 1;
}

// Does the recorded order use the bundle between now and place `end`?
bool Core::used_before(int32_t bundle, size_t end) const {
  const Trace& trace = traces_[mode_ == ALQ_EVAL];
  for (size_t i = trace.at; i < end; ++i) {
    const std::vector<int32_t>& used = shape_.units[at(trace.order[i])];
    if (std::find(used.begin(), used.end(), bundle) != used.end()) return true;
  }
  return false;
}

void Core::prefetch() {
  if (stale_ == 0 || shape_.prefetch == 0) return;
  const Trace& trace = traces_[mode_ == ALQ_EVAL];
  size_t end = std::min(trace.order.size(), trace.at + kLookahead);
  int32_t ahead = 0;
  for (size_t i = trace.at; i < end && ahead < shape_.prefetch; ++i) {
    bool counted = false;
    for (int32_t b : shape_.units[at(trace.order[i])]) {
      if (bundles_[at(b)].fresh) {
        // One that was gathered ahead and not begun yet uses up depth.
        counted = counted ||
                  (!bundles_[at(b)].awaited && shape_.bundles[at(b)].gathers);
        continue;
      }
      int32_t owner = slot_owner_[at(shape_.bundles[at(b)].slot)];
      if (owner >= 0 && owner != b &&
          (holds_slot(owner) || used_before(owner, i))) {
        return;
      }
      bring(b, true);
      counted = true;
    }
    ahead += counted ? 1 : 0;
  }
}

CoreError Core::unit_begin(int32_t unit, int32_t pass, bool lend) {
  if (!in_microbatch_) return {CoreCode::kNotInMicrobatch};
  if (mode_ == ALQ_EVAL && pass != ALQ_PASS_F_NOGRAD) {
    return {CoreCode::kBadPass};
  }
  if (CoreError e = check_slots(unit); !e.ok()) return e;
  const std::vector<int32_t>& bundles = shape_.units[at(unit)];
  bool lends = pass == ALQ_PASS_B && lend;
  if (lends) {
    for (int32_t b : bundles) {
      if (shape_.bundles[at(b)].trainable.empty()) continue;
      if (CoreError e = check_grad_slot(b); !e.ok()) return e;
    }
  }

  bool held = units_[at(unit)].holds > 0;
  if (!held) follow_trace(unit);
  ++units_[at(unit)].open[pass];
  for (int32_t b : bundles) {
    BundleState& state = bundles_[at(b)];
    if (pass == ALQ_PASS_R || pass == ALQ_PASS_B) state.final_grads = false;
    if (!state.fresh) bring(b, false);
    // Awaiting again is free and another stream may be asking.
    act(ActionKind::kAwait, b, 0);
    state.awaited = true;
    if (lends && !shape_.bundles[at(b)].trainable.empty()) {
      open_window(b);
      for (int32_t p : shape_.bundles[at(b)].trainable) {
        ++params_[at(p)].lends;
      }
    }
  }
  if (!held) prefetch();
  return {};
}

CoreError Core::unit_end(int32_t unit, int32_t pass) {
  if (!in_microbatch_) return {CoreCode::kNotInMicrobatch};
  if (units_[at(unit)].open[pass] == 0) return {CoreCode::kNotOpen};
  // A bundle that is no longer needed stays until its slot is: a later begin
  // may still find it.
  --units_[at(unit)].open[pass];
  if (units_[at(unit)].holds == 0) prefetch();
  return {};
}

void Core::open_window(int32_t bundle) {
  BundleState& state = bundles_[at(bundle)];
  if (state.window != Window::kIdle) return;
  state.window = Window::kCollecting;
  grad_owner_[at(shape_.bundles[at(bundle)].grad_slot)] = bundle;
  act(ActionKind::kOpenGrads, bundle, 0);
}

CoreError Core::grad_open(int32_t param) {
  if (!in_microbatch_ || mode_ == ALQ_EVAL) return {CoreCode::kNotInMicrobatch};
  int32_t b = shape_.param_bundle[at(param)];
  if (b < 0) return {CoreCode::kNotTrainable};
  if (params_[at(param)].ready) return {CoreCode::kAlreadyReady};
  if (CoreError e = check_grad_slot(b); !e.ok()) return e;
  open_window(b);
  return {};
}

CoreError Core::grad_ready(int32_t param) {
  if (!in_microbatch_ || mode_ == ALQ_EVAL) return {CoreCode::kNotInMicrobatch};
  int32_t b = shape_.param_bundle[at(param)];
  if (b < 0) return {CoreCode::kNotTrainable};
  BundleState& state = bundles_[at(b)];
  if (params_[at(param)].ready) return {CoreCode::kAlreadyReady};
  if (state.window != Window::kCollecting) return {CoreCode::kNoGradWindow};
  params_[at(param)].ready = true;
  ++state.ready;
  if (state.ready ==
      static_cast<int32_t>(shape_.bundles[at(b)].trainable.size())) {
    reduce(b);
    prefetch();
  }
  return {};
}

void Core::reduce(int32_t bundle) {
  BundleState& state = bundles_[at(bundle)];
  state.window = Window::kReduced;
  // A frozen layer may still be on backward's way to the unit's input.
  state.final_grads = !shape_.bundles[at(bundle)].has_frozen;
  act(ActionKind::kReduce, bundle, 0);
}

// Zeros for what is not ready.
void Core::reduce_zeros(int32_t bundle) {
  open_window(bundle);
  for (int32_t p : shape_.bundles[at(bundle)].trainable) {
    if (!params_[at(p)].ready) act(ActionKind::kZeroGrad, bundle, p);
  }
  reduce(bundle);
}

CoreError Core::grads_missing(int32_t bundle) {
  if (!in_microbatch_ || mode_ == ALQ_EVAL) return {CoreCode::kNotInMicrobatch};
  if (shape_.bundles[at(bundle)].trainable.empty()) {
    return {CoreCode::kNotTrainable};
  }
  if (bundles_[at(bundle)].window == Window::kReduced) {
    return {CoreCode::kAlreadyReady};
  }
  if (CoreError e = check_grad_slot(bundle); !e.ok()) return e;
  reduce_zeros(bundle);
  prefetch();
  return {};
}

CoreError Core::microbatch_end() {
  if (!in_microbatch_) return {};
  for (UnitState& unit : units_) {
    std::fill(std::begin(unit.open), std::end(unit.open), 0);
  }
  if (mode_ == ALQ_TRAIN) {
    // Backward order: last bundle first, as the reductions before.
    for (size_t i = bundles_.size(); i-- > 0;) {
      int32_t b = static_cast<int32_t>(i);
      const std::vector<int32_t>& trainable = shape_.bundles[i].trainable;
      if (trainable.empty() || bundles_[i].window == Window::kReduced) continue;
      reduce_zeros(b);
    }
  }
  Trace& trace = traces_[mode_ == ALQ_EVAL];
  if (!trace.recording.empty()) std::swap(trace.order, trace.recording);
  in_microbatch_ = false;
  return {};
}

CoreError Core::check_step() const {
  if (in_microbatch_) return {CoreCode::kInMicrobatch};
  return {holding() ? CoreCode::kStillHeld : CoreCode::kOk};
}

CoreError Core::step() {
  if (CoreError e = check_step(); !e.ok()) return e;
  touch();
  return {};
}

void Core::touch() {
  for (size_t b = 0; b < bundles_.size(); ++b) {
    if (!shape_.bundles[b].gathers) continue;
    set_fresh(static_cast<int32_t>(b), false);
    bundles_[b].changed = true;
  }
  // Held units stay readable: ranks may run different numbers of passes of
  // them, so none of those may find anything left to gather.
  for (size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].holds > 0) bring_all(static_cast<int32_t>(u));
  }
}

void Core::bring_all(int32_t unit) {
  for (int32_t b : shape_.units[at(unit)]) {
    if (!bundles_[at(b)].fresh) bring(b, false);
    act(ActionKind::kAwait, b, 0);
    bundles_[at(b)].awaited = true;
  }
}

void Core::abandon() {
  in_microbatch_ = false;
  for (UnitState& unit : units_) {
    std::fill(std::begin(unit.open), std::end(unit.open), 0);
  }
  for (BundleState& state : bundles_) {
    state.window = Window::kIdle;
    state.ready = 0;
  }
}

CoreError Core::hold(int32_t unit) {
  if (CoreError e = check_slots(unit); !e.ok()) return e;
  ++units_[at(unit)].holds;
  ++holds_;
  bring_all(unit);
  return {};
}

CoreError Core::unhold(int32_t unit) {
  if (units_[at(unit)].holds == 0) return {CoreCode::kNotHeld};
  --units_[at(unit)].holds;
  --holds_;
  return {};
}

}  // namespace aliquot::engine
