// The engine's memory: the arena (the library's or the caller's slab) and, for
// mapped gathers, memory common to the ranks of the shard axis.
#pragma once

#include <memory>

#include "comm/group.h"
#include "engine/plan.h"

namespace aliquot::engine {

class EngineMemory {
 public:
  // slab null: allocated on the device.  Collective where common memory is
  // used.
  static Result<EngineMemory> create(const Plan& plan, Device* device,
                                     Group* shard_group, void* slab,
                                     Deadline deadline);

  // Null for a region that does not exist, and where there is no memory: a
  // model may have nothing but empty parameters.
  std::byte* at(const Region& region) const {
    if (!region.exists()) return nullptr;
    if (!region.common) return arena_ + region.offset;
    return common_ == nullptr ? nullptr : common_->data() + region.offset;
  }

 private:
  std::unique_ptr<Memory> owned_, common_;
  std::byte* arena_ = nullptr;
};

}  // namespace aliquot::engine
