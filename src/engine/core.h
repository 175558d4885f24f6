// The engine's core: one state machine for every placement.  No threads, no
// clock, no I/O, and after construction no allocation: what it decides is a
// function of the calls alone.  Inputs are the host's calls; outputs are
// actions, in an order that is the same on every rank, for an executor that
// binds them to devices and groups (or for a simulator).
//
// Residency.  A bundle's full parameters live in a slot.  Bundles share slots:
// the slot works like a direct-mapped cache, so a gather happens exactly when
// another bundle used the slot in between or a step made the contents stale.  A
// bundle is needed while a unit that uses it has an open pass, or is held.
// Passes nest and are counted.  When all gradients of a bundle without frozen
// parameters are final its backward and recompute passes no longer need it.
//
// Prefetch.  The order of unit begins is recorded per mode.  Each begin and end
// looks ahead in the last recorded order and gathers the next `prefetch` absent
// bundles whose slots are free, stopping at the first that is not: it waits, it
// never reorders.  A begin that departs from the order re-finds its place and
// counts as a repair.  Passes of a held unit leave no trace and prefetch
// nothing: ranks may run different numbers of them.
//
// Gradients.  A bundle collects in one window per microbatch; when its last
// trainable parameter is ready it reduces.  Gradient slots are shared too.
#pragma once

#include <cstdint>
#include <vector>

#include "aliquot/aliquot.h"

namespace aliquot::engine {

// What the plan decided, as the core needs it.
struct CoreShape {
  struct Bundle {
    std::vector<int32_t> units;
    bool gathers = false;  // stale after a step until gathered
    int32_t slot = 0;      // every bundle has one, shared or its own
    int32_t grad_slot = 0;
    bool has_frozen = false;
    std::vector<int32_t> trainable;  // parameters
  };
  std::vector<Bundle> bundles;
  std::vector<std::vector<int32_t>> units;  // bundles of each unit
  std::vector<int32_t> param_bundle;        // -1: frozen
  int32_t slots = 0, grad_slots = 0;
  int32_t prefetch = 1;
};

enum class ActionKind : int32_t {
  kEvict,      // the slot's contents of `bundle` are dead; another comes next
  kGather,     // enqueue the gather of `bundle`; arg: kGather* flags
  kAwait,      // the caller's stream waits for the gather of `bundle`
  kOpenGrads,  // `bundle` takes its gradient slot; wait until that is free
  kZeroGrad,   // parameter `arg` of `bundle` got no gradient: write zeros
  kReduce,     // the gradients of `bundle` are final: enqueue the reduction
};

constexpr int32_t kGatherPrefetched = 1;
constexpr int32_t kGatherChanged = 2;  // the first since values changed

struct Action {
  ActionKind kind;
  int32_t bundle;
  int32_t arg;
};

enum class CoreCode : int32_t {
  kOk,
  kNotInMicrobatch,
  kInMicrobatch,
  kBadPass,       // a pass that the mode does not allow
  kNotOpen,       // end without begin
  kSlotBusy,      // unit's slot is needed by open unit `other`
  kGradSlotBusy,  // gradient slot is still collected by unit `other`
  kAlreadyReady,  // gradient made ready twice
  kNotTrainable,
  kNoGradWindow,  // grad_ready before any backward of its unit
  kStillHeld,
  kNotHeld,
};

struct CoreError {
  CoreCode code = CoreCode::kOk;
  int32_t other = -1;
  bool ok() const { return code == CoreCode::kOk; }
};

class Core {
 public:
  explicit Core(CoreShape shape);

  // Each call appends to actions().  A refused call changes nothing.
  CoreError microbatch_begin(int32_t mode);
  // lend: give the gradient views of the unit's bundles (pass B).
  CoreError unit_begin(int32_t unit, int32_t pass, bool lend);
  CoreError unit_end(int32_t unit, int32_t pass);
  // A pushed gradient opens the bundle's window itself.
  CoreError grad_open(int32_t param);
  CoreError grad_ready(int32_t param);
  // A rank without data: zeros for all gradients of the bundle, which is final.
  CoreError grads_missing(int32_t bundle);
  CoreError microbatch_end();
  CoreError check_step() const;
  CoreError step();
  CoreError hold(int32_t unit);
  CoreError unhold(int32_t unit);
  // Values changed from outside: what was gathered is stale, and what is held
  // is gathered again.
  void touch();
  // Drops the microbatch and all windows; actions are none.
  void abandon();

  std::vector<Action>& actions() { return actions_; }

  // The parameter's view was lent before in this window: add to what is there.
  bool grad_lent_before(int32_t param) const {
    return params_[static_cast<size_t>(param)].lends > 1;
  }
  bool in_microbatch() const { return in_microbatch_; }
  bool holding() const { return holds_ > 0; }
  // The bundle that reduces because of the last call, or -1.
  int32_t reduces() const {
    for (const Action& action : actions_) {
      if (action.kind == ActionKind::kReduce) return action.bundle;
    }
    return -1;
  }
  int64_t gathers() const { return gathers_; }
  int64_t prefetches() const { return prefetches_; }
  int64_t repairs() const { return repairs_; }
  // Bundles needed now; 0 between microbatches without holds.
  int32_t needed() const;
  bool resident(int32_t bundle) const;

 private:
  static constexpr int32_t kPasses = 5;
  struct UnitState {
    int32_t open[kPasses] = {};
    int32_t holds = 0;
  };
  enum class Window : int32_t { kIdle, kCollecting, kReduced };
  struct BundleState {
    bool fresh = false;        // the slot holds the current version
    bool changed = true;       // values did, since the last gather
    bool awaited = false;      // someone waited for the current gather
    bool final_grads = false;  // since the last backward begin
    Window window = Window::kIdle;
    int32_t ready = 0;
  };
  struct ParamState {
    bool ready = false;
    int32_t lends = 0;
  };
  struct Trace {
    std::vector<int32_t> order;      // of the last complete microbatch
    std::vector<int32_t> recording;  // of the running one
    size_t at = 0;                   // next expected in order
  };

  bool needed(int32_t bundle) const;
  bool holds_slot(int32_t bundle) const;
  int32_t unit_that_needs(int32_t bundle) const;
  CoreError check_slots(int32_t unit) const;
  CoreError check_grad_slot(int32_t bundle) const;
  void bring(int32_t bundle, bool prefetched);
  void bring_all(int32_t unit);
  void set_fresh(int32_t bundle, bool fresh);
  void open_window(int32_t bundle);
  void reduce(int32_t bundle);
  void reduce_zeros(int32_t bundle);
  bool used_before(int32_t bundle, size_t end) const;
  void follow_trace(int32_t unit);
  void prefetch();
  void act(ActionKind kind, int32_t bundle, int32_t arg);

  CoreShape shape_;
  std::vector<UnitState> units_;
  std::vector<BundleState> bundles_;
  std::vector<ParamState> params_;
  std::vector<int32_t> slot_owner_, grad_owner_;  // bundle or -1
  Trace traces_[2];                               // TRAIN, EVAL
  std::vector<Action> actions_;
  bool in_microbatch_ = false;
  int32_t mode_ = ALQ_TRAIN;
  int32_t stale_ = 0;  // bundles that gather and are not fresh
  int32_t holds_ = 0;  // of all units
  int64_t gathers_ = 0, prefetches_ = 0, repairs_ = 0;
};

}  // namespace aliquot::engine
