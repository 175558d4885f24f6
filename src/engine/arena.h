// Hands out the places of a plan: of the arena, of common memory, and of slots
// that bundles share.
#pragma once

#include <algorithm>
#include <vector>

#include "engine/plan.h"

namespace aliquot::engine {

constexpr int64_t kAlign = 64;
constexpr int64_t kPage = 4096;

inline int64_t round_up(int64_t n, int64_t to) {
  return (n + to - 1) / to * to;
}

// Hands out consecutive places of a rank's memory and of common memory.
class ArenaLayout {
 public:
  explicit ArenaLayout(Plan* plan) : plan_(plan) {}

  bool overflowed() const { return overflowed_; }

  Region take(Owner owner, int64_t bytes, Home home = Home::kArena) {
    if (!fits(bytes)) return {0, home};
    int64_t& end = end_of(home);
    Region region{end, home};
    int64_t size = round_up(bytes, kAlign);
    end += size;
    int64_t sharers = home == Home::kCommon ? plan_->axes.shards : 1;
    plan_->by_owner[static_cast<size_t>(owner)] += size / sharers;
    return region;
  }

 private:
  int64_t& end_of(Home home) {
    switch (home) {
      case Home::kArena: return plan_->arena_bytes;
      case Home::kOpen: return plan_->open_bytes;
      case Home::kCommon: break;
    }
    return plan_->common_bytes;
  }

  bool fits(int64_t bytes) {
    constexpr int64_t kMost = int64_t{1} << 57;
    overflowed_ = overflowed_ || bytes < 0 || bytes > kMost ||
                  plan_->arena_bytes > kMost || plan_->open_bytes > kMost ||
                  plan_->common_bytes > kMost;
    return !overflowed_;
  }

  Plan* plan_;
  bool overflowed_ = false;
};

inline Region inside(Region region, int64_t elements, Dtype dtype) {
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
  void place(ArenaLayout* layout, Owner owner) {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      offset_[i] = layout->take(owner, bytes_[i]).offset;
    }
  }
  Region at(size_t slot, int64_t offset) const {
    return {offset_[slot] + offset};
  }

 private:
  std::vector<int64_t> bytes_, offset_;
};

}  // namespace aliquot::engine
