// Another plan for an engine that runs: a second engine of the same model is
// planned beside the first, and when it is committed takes over its values.
//
// Cost: every parameter and optimizer state is gathered once, in bounded
// chunks, and both plans' memory exists while that lasts.
#include <algorithm>
#include <vector>

#include "engine/engine.h"

namespace aliquot::engine {
namespace {

constexpr int64_t kChunk = int64_t{1} << 18;  // elements moved at a time

}  // namespace

Status Engine::between_steps(const char* call) const {
  if (!core_->in_microbatch() && microbatch_ == 0 && core_->needed() == 0) {
    return {};
  }
  return make_error(ALQ_FAILED_PRECONDITION,
                    "engine {}: {} between steps only, with nothing held: {}",
                    name_, call,
                    core_->in_microbatch() ? "end the microbatch and step"
                    : microbatch_ != 0     ? "step first"
                                           : "unhold the units");
}

Result<std::shared_ptr<Engine>> Engine::replanned(const alq_plan_desc& desc) {
  ALQ_TRY(need_committed("plan"));
  ALQ_TRY(between_steps("a new plan is made"));
  ALQ_TRY(record(OtherCall::kPlan));
  auto next =
      std::make_shared<Engine>(context_, device_, mesh_, name_, config_);
  next->model_.params = model_.params;
  next->model_.units = model_.units;
  next->optimizers_ = optimizers_;
  ALQ_TRY(next->plan(desc));
  return next;
}

// Values are moved out of the running plan's memory: it must not be the new
// plan's too.
Status Engine::check_apart(const void* slab, int64_t bytes) const {
  auto mine = reinterpret_cast<uintptr_t>(executor_->at(Region{0}));
  auto other = reinterpret_cast<uintptr_t>(slab);
  if (slab == nullptr || plan_.arena_bytes == 0 ||
      other >= mine + static_cast<uint64_t>(plan_.arena_bytes) ||
      mine >= other + static_cast<uint64_t>(bytes)) {
    return {};
  }
  return make_error(ALQ_INVALID_ARGUMENT,
                    "engine {}: the slab for the new plan overlaps the {} B "
                    "that the running plan still uses; pass another",
                    name_, plan_.arena_bytes);
}

// One rank's mistake must not leave the others waiting for its values.
Status Engine::agree(const Status& mine) const {
  int32_t failed = mine.ok() ? 0 : 1;
  Coll coll;
  coll.kind = CollKind::kAllReduce;
  coll.src = coll.dst = &failed;
  coll.count = 1;
  coll.dtype = ALQ_I32;
  coll.op = ALQ_MAX;
  coll.label = "replan";
  ALQ_TRY(groups_.exchange->issue(coll, nullptr, nullptr));
  if (!mine.ok() || failed == 0) return mine;
  return make_error(
      ALQ_ABORTED,
      "engine {}: another rank could not commit the new plan; the "
      "old one stays",
      name_);
}

Status Engine::take_over(Engine& old, void* slab) {
  ALQ_TRY(old.between_steps("a new plan is committed"));
  Status usable = check_slab(slab);
  if (usable.ok()) usable = old.check_apart(slab, plan_.arena_bytes);
  ALQ_TRY(agree(usable));
  ALQ_TRY(old.executor_->drain(deadline()));
  ALQ_TRY(old.catch_up());
  ALQ_TRY(commit(slab));
  for (size_t i = 0; i < model_.params.size(); ++i) {
    auto id = static_cast<int32_t>(i);
    for (int32_t what : {ALQ_VALUE, ALQ_STATE_0, ALQ_STATE_1}) {
      Result<Part> part = old.part_of(id, what);
      if (part.ok()) ALQ_TRY(move_values(old, id, what, part->dtype));
    }
  }
  ALQ_TRY(executor_->set_steps(old.steps_));
  steps_ = old.steps_;
  replans_ = old.replans_ + 1;
  return touch();
}

Status Engine::move_values(Engine& old, int32_t id, int32_t what, Dtype dtype) {
  const int64_t count = model_.params[static_cast<size_t>(id)].count;
  const int64_t most = std::min(count, kChunk);
  std::vector<std::byte> chunk(static_cast<size_t>(most * dtype_size(dtype)));
  for (int64_t done = 0; done < count; done += kChunk) {
    int64_t n = std::min(kChunk, count - done);
    ALQ_TRY(old.param_read(id, what, chunk.data(), done, n, dtype));
    ALQ_TRY(param_write(id, what, chunk.data(), done, n, dtype));
  }
  return {};
}

}  // namespace aliquot::engine
