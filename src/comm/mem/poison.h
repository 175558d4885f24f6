// Poison: the first failure of a group, in its control block.  Whoever comes
// first writes it; everyone reports the same.
#pragma once

#include "comm/mem/core.h"

namespace aliquot::mem {

// Writes the cause unless there is one, and wakes all members.
void poison(const GroupCore& core, alq_status code, int32_t culprit,
            const std::string& text);

// This rank left in the operation that `what` names.
void poison_by_leaving(const GroupCore& core, const std::string& what);

inline bool poisoned(const GroupCore& core) { return core.failed(); }

// The cause as it is; OK when the group is well.  Blocks: as WrittenOnce.
Status poison_cause(const GroupCore& core);

// What an operation of this rank fails with: what the group does, after the
// given error, if it is one, became its cause.  Groups that fail with this one
// have failed then.  Blocks: as WrittenOnce.
Status fail_operation(GroupCore& core, const Status& error);

// What a call returns on a failed group: the cause the first time on this
// rank, then GROUP_POISONED with the cause's text.  Followers fail, too.
Status poison_report(GroupCore& core);

}  // namespace aliquot::mem
