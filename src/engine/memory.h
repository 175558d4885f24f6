// The engine's memory: the arena (the library's or the caller's slab), memory
// that the ranks of the shard axis have in common, and one after the other
// every rank's open memory.
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
    switch (region.home) {
      case Home::kArena: return arena_ + region.offset;
      case Home::kOpen: return in(opens_, mine_ + region.offset);
      case Home::kCommon: break;
    }
    return in(common_, region.offset);
  }
  // A region of open memory, in that of the rank `by` places further on the
  // shard axis.
  std::byte* at_peer(const Region& region, int32_t by) const {
    return in(opens_, mine_ + by * open_bytes_ + region.offset);
  }

 private:
  static std::byte* in(const std::unique_ptr<Memory>& memory, int64_t offset) {
    return memory == nullptr ? nullptr : memory->data() + offset;
  }

  std::unique_ptr<Memory> owned_, common_, opens_;
  std::byte* arena_ = nullptr;
  int64_t open_bytes_ = 0, mine_ = 0;  // in opens_
};

}  // namespace aliquot::engine
