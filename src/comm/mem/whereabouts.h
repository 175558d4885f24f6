// Whereabouts: what is known of a rank that is late or gone, for the errors of
// those who wait for it.  Cost: a store and a coarse clock per operation; text
// only when a wait is long.
#pragma once

#include <string>

#include "comm/mem/core.h"

namespace aliquot::mem {

// This rank is in an operation now; awaits: the world rank it waits for, or -1.
inline void mark_seen(const GroupCore& core, int32_t awaits = -1) {
  Seen& seen = core.world->control.member(core.world->rank).seen;
  seen.at.store(coarse_ns(), std::memory_order_relaxed);
  seen.awaits.store(awaits + 1, std::memory_order_relaxed);
}

// What this rank does: "waiting in ...", "after giving up ...", or "".
void say_where(const GroupCore& core, const std::string& what);

// "last seen 12 ms ago, waiting in ..." of a world rank.
std::string last_seen(const GroupCore& core, int32_t world_rank);

// Who is to blame when this rank waits for `world_rank`: if that one waits for
// another, and so on, the last of the line.  In a circle it is the first one.
int32_t last_in_line(const GroupCore& core, int32_t world_rank);

// " (rank 3: last seen ..., waiting ...; the last it waits for is rank 2: ...)"
std::string late_text(const GroupCore& core, int32_t world_rank);

// What member q, whose process ended or stopped, announced last in this group:
// ", in operation 7 (all_reduce(100 x f32, sum), "unit")", or "".
std::string last_call(const GroupCore& core, int32_t q);

// Copies a call's label into the slot that announces it.
void set_label(Slot& slot, const char* label);

}  // namespace aliquot::mem
