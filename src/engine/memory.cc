#include "engine/memory.h"

namespace aliquot::engine {

Result<EngineMemory> EngineMemory::create(const Plan& plan, Device* device,
                                          Group* shard_group, void* slab,
                                          Deadline deadline) {
  EngineMemory memory;
  if (slab != nullptr) {
    memory.arena_ = static_cast<std::byte*>(slab);
    kernels::FillArgs zero{slab, plan.arena_bytes, 0, 1};
    ALQ_TRY(
        device->launch(nullptr, kernels::OpCode::kFill, &zero, sizeof zero));
  } else if (plan.arena_bytes > 0) {
    ALQ_ASSIGN(memory.owned_,
               device->allocate(plan.arena_bytes, "engine arena"));
    memory.arena_ = memory.owned_->data();
  }
  if (plan.common_bytes > 0) {
    ALQ_ASSIGN(memory.common_,
               shard_group->allocate_common(plan.common_bytes, "engine common",
                                            deadline));
  }
  if (plan.open_bytes > 0) {
    ALQ_ASSIGN(memory.opens_,
               shard_group->allocate_common(plan.axes.shards * plan.open_bytes,
                                            "engine parameters", deadline));
    memory.open_bytes_ = plan.open_bytes;
    memory.mine_ = plan.axes.shard_index * plan.open_bytes;
  }
  return memory;
}

}  // namespace aliquot::engine
