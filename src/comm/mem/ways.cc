#include "comm/mem/ways.h"

#include <mutex>

namespace aliquot::mem {
namespace {

// The ways that trials may take; empty: none.
uint32_t possible_ways(const World& world, Moved what) {
  const Context& hints = *world.context;
  uint32_t ways = kStores;
  if (world.cma) ways |= 1u << kRead;
  if (world.cma && what == Moved::kReduced) ways |= 1u << kReadStreamed;
  if (hints.stage_streams.has_value()) {
    const bool streams = *hints.stage_streams;
    ways &= ~(1u << (streams ? kCached : kStreamed));
    if (what == Moved::kReduced) {
      ways &= ~(1u << (streams ? kRead : kReadStreamed));
    }
  }
  if (what == Moved::kResults) return ways & kStores;
  const bool copies = what == Moved::kCopies;
  const bool settled =
      (copies ? hints.stage_copies : hints.stage_sums).has_value();
  return settled ? 0 : ways;
}

}  // namespace

Way way_now(const World& world, Moved what, int64_t bytes) {
  const Header& header = world.control.header();
  const Way found = header.ways[moved_kind(what, bytes)].load();
  if (found != kAsMeasured) return found;
  const StageLimits limits = stage_limits(world);
  const int64_t most = what == Moved::kCopies ? limits.copies : limits.sums;
  if (what == Moved::kResults || !world.cma || bytes <= most) {
    return limits.streams ? kStreamed : kCached;
  }
  const bool streams = what == Moved::kReduced && limits.streams;
  return streams ? kReadStreamed : kRead;
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
