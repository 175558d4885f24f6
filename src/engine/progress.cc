// Whether this rank's progress thread runs: asked for in the plan, or decided
// at commit from a measurement that all ranks make at the same time, and agreed
// on, since the slowest rank is what all wait for.
#include "engine/engine.h"

namespace aliquot::engine {

Status Engine::choose_progress() {
  if (device_->asynchronous()) {
    progress_ = {};
    progress_.why = "the device runs its streams by itself";
    return {};
  }
  if (plan_.desc.progress != ALQ_PROGRESS_AUTO) {
    ALQ_ASSIGN(progress_,
               device_->set_progress(plan_.desc.progress, deadline()));
    return {};
  }
  Coll coll;
  coll.kind = CollKind::kBarrier;
  coll.label = "progress";
  ALQ_TRY(groups_.exchange->issue(coll, nullptr, nullptr));
  ALQ_ASSIGN(progress_, device_->set_progress(ALQ_PROGRESS_AUTO, deadline()));
  // A rank whose choice was made when it was opened keeps it.
  bool measured = progress_.hidden >= 0;
  double hidden = measured ? progress_.hidden : 1;
  coll.kind = CollKind::kAllReduce;
  coll.src = coll.dst = &hidden;
  coll.count = 1;
  coll.dtype = ALQ_F64;
  coll.op = ALQ_MIN;
  ALQ_TRY(groups_.exchange->issue(coll, nullptr, nullptr));
  if (!measured) return {};
  bool on = progress_.on && hidden >= progress_.least_hidden;
  if (progress_.on && !on) {
    ALQ_TRY(device_->set_progress(ALQ_PROGRESS_OFF, deadline()).status());
  }
  progress_.on = on;
  progress_.hidden = hidden;
  return {};
}

}  // namespace aliquot::engine
