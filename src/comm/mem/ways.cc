#include "comm/mem/ways.h"

#include <mutex>

namespace aliquot::mem {
namespace {

// The ways that trials may take; empty: none.
uint32_t possible_ways(const World& world, Moved what) {
  const Context& hints = *world.context;
  uint32_t stores = kStores;
  if (hints.stage_streams.has_value()) {
    stores = 1u << (*hints.stage_streams ? kStreamed : kCached);
  }
  if (what == Moved::kResults) return stores;
  const bool sums = what == Moved::kSums;
  if ((sums ? hints.stage_sums : hints.stage_copies).has_value()) return 0;
  return stores | (world.cma ? 1u << kRead : 0);
}

}  // namespace

Way way_now(const World& world, Moved what, int64_t bytes) {
  const Header& header = world.control.header();
  const Way found = header.ways[moved_kind(what, bytes)].load();
  if (found != kAsMeasured) return found;
  const StageLimits limits = stage_limits(world);
  const int64_t most = what == Moved::kSums ? limits.sums : limits.copies;
  if (what != Moved::kResults && world.cma && bytes > most) return kRead;
  return limits.streams ? kStreamed : kCached;
}

void try_ways(World& world, int32_t kind, Way way, uint64_t like,
              int64_t begun) {
  const uint32_t possible =
      possible_ways(world, static_cast<Moved>(kind / kMovedSizes));
  if (possible == 0) return;
  std::unique_lock lock(world.trial_mutex, std::try_to_lock);
  if (!lock.owns_lock()) return;
  const int64_t now = now_ns();
  const Way next =
      world.trials[kind].ended(way, possible, like, now - begun, now);
  if (next != way) world.control.header().ways[kind].store(next);
}

}  // namespace aliquot::mem
