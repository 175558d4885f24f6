// Whereabouts: what is known of a rank that is late or gone, for the errors of
// those who wait for it.  Cost: a store and a coarse clock per operation; text
// only when a wait is long.
#pragma once

#include <string>

#include "comm/mem/core.h"

namespace aliquot::mem {

// This rank is in the library now.
inline void mark_seen(const GroupCore& core) {
  core.world->control.member(core.world->rank)
      .seen.value.store(static_cast<uint64_t>(coarse_ns()),
                        std::memory_order_relaxed);
}

// What this rank does: "waiting in ...", "after giving up ...", or "".
void say_where(const GroupCore& core, const std::string& what);

// "last seen 12 ms ago, waiting in ..." of member q.
std::string last_seen(const GroupCore& core, int32_t q);

// What member q, whose process ended or stopped, announced last in this group:
// ", in operation 7 (all_reduce(100 x f32, sum), "unit")", or "".
std::string last_call(const GroupCore& core, int32_t q);

// `, "unit"` or "".
std::string label_text(const char* label);

// Copies a call's label into the slot that announces it.
void set_label(Slot& slot, const char* label);

}  // namespace aliquot::mem
