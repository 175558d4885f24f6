// The ways of a world's operations: as calibrate() measured or a hint says,
// then as trials on rank 0 find out.
#pragma once

#include "comm/mem/calibrate.h"

namespace aliquot::mem {

// Now, for operations of this kind of which a rank has at most `bytes` for
// another; never kAsMeasured.
Way way_now(const World& world, Moved what, int64_t bytes);

// Rank 0: an operation that went that way has taken the time since `begun`; see
// WayTrial.  A hint settles the matter.
void try_ways(World& world, int32_t kind, Way way, uint64_t like,
              int64_t begun);

}  // namespace aliquot::mem
