// Leaving a step after an exception on one rank.
//
// The rank aborts the engine's communicators, which ends the calls of all other
// ranks with ABORTED and its name; they come here too.  Nothing of the step is
// worth finishing, so nobody serves anybody: all meet on a communicator that is
// used for nothing else, make the others anew, and forget the step.
//
// What stays: parameters, masters and optimizer states, which only a step
// changes, and a step meets all ranks before it does; so either all ranks have
// taken it or none.  What goes: gradients, weights, holds, the recorded order.
// Cost: a few small collectives and five splits.
#include <algorithm>
#include <vector>

#include "engine/engine.h"

namespace aliquot::engine {

Status Engine::abandon(Deadline deadline) {
  ALQ_TRY(need_committed("abandon"));
  Status reason = make_error(ALQ_ABORTED, "rank {} left the step of engine {}",
                             context_->rank, name_)
                      .with_rank(context_->rank);
  // Who comes because another rank left passes that rank's name on.
  for (const auto& group : groups_.all()) {
    if (Status cause = group->status(); !cause.ok()) {
      reason = std::move(cause);
      break;
    }
  }
  // A step that this rank called, all have taken or none; see step_later.
  if (device_->asynchronous()) (void)executor_->settle_step(deadline);
  abort_groups(reason);
  ALQ_TRY(executor_->settle(deadline));
  if (device_->asynchronous()) {
    Status ended = device_->synchronize(*decided_, deadline);
    if (ended.code() == ALQ_DEADLINE_EXCEEDED) return ended;
  }
  if (outcome_unknown_) steps_ = step_memory_->results[0].steps;
  outcome_unknown_ = false;
  ALQ_TRY(meet_leaving(deadline));
  if (log_ != nullptr) log_->reset();
  ALQ_TRY(step_memory_->reset());
  ALQ_TRY(renew_groups(deadline));
  if (log_ != nullptr) log_->use(groups_.exchange);
  ALQ_TRY(executor_->renew(groups_));
  core_ = std::make_unique<Core>(plan_.core_shape(model_));
  for (auto& passes : computing_) passes.fill(nullptr);
  clear_step();
  training_ = gathered_since_sync_ = false;
  return touch();
}

void Engine::abort_groups(const Status& reason) {
  for (const auto& group : groups_.all()) {
    if (group->status().ok()) group->abort(reason);
  }
}

// All have stopped using each other's memory, after the same number of steps.
Status Engine::meet_leaving(Deadline deadline) {
  std::vector<int64_t> steps(static_cast<size_t>(groups_.leave->size()));
  Coll coll;
  coll.kind = CollKind::kAllGather;
  coll.src = &steps_;
  coll.dst = steps.data();
  coll.count = 1;
  coll.dtype = ALQ_I64;
  coll.label = "abandon";
  const int64_t timeout = groups_.leave->timeout_ns();
  groups_.leave->set_timeout_ns(std::max<int64_t>(deadline.left(), 1));
  Status met = groups_.leave->issue(coll, nullptr, nullptr);
  groups_.leave->set_timeout_ns(timeout);
  ALQ_TRY(std::move(met));
  auto other = std::find_if(steps.begin(), steps.end(),
                            [&](int64_t s) { return s != steps_; });
  if (other == steps.end()) return {};
  int32_t rank =
      groups_.leave->ranks()[static_cast<size_t>(other - steps.begin())];
  return make_error(ALQ_INTERNAL,
                    "engine {}: rank {} has taken {} steps and rank {} {}; the "
                    "ranks' parameters differ, load a checkpoint",
                    name_, context_->rank, steps_, rank, *other)
      .with_rank(rank);
}

Status Engine::renew_groups(Deadline deadline) {
  const char* shard_axes = shard_axes_of(plan_);
  auto renew = [&](const char* axes, const char* purpose,
                   std::shared_ptr<Group>* group) -> Status {
    if (*group == nullptr) return {};
    ALQ_ASSIGN(*group,
               mesh_->renew(axes, purpose, groups_.leave.get(), deadline));
    return {};
  };
  ALQ_TRY(renew(shard_axes, "gather", &groups_.gather));
  ALQ_TRY(renew(shard_axes, "reduce", &groups_.reduce));
  ALQ_TRY(renew("dp_replicate", "reduce", &groups_.replicate));
  ALQ_TRY(renew("dp_replicate", "gather", &groups_.assemble));
  return renew("dp_replicate,dp_shard", "exchange", &groups_.exchange);
}

}  // namespace aliquot::engine
