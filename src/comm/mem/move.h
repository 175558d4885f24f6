// The two ways data moves in a direct algorithm, a block per call.
#pragma once

#include "comm/mem/coll_op.h"

namespace aliquot::mem {

// to = bytes [offset, offset + bytes) of peer q's `which`.  kDone when all is
// copied, else kProgress or kFailed.
Step copy_from(CollOp& op, int32_t q, Location Slot::*which, int64_t offset,
               std::byte* to, int64_t bytes);

// to = the canonical sum over ranks of own part of their src.
Step reduce_part(CollOp& op, std::byte* to);

// to = the reduction of count elements from one pointer per rank, which are
// elements [at, at + count) of every src.
void reduce(CollOp& op, const void* const* srcs, std::byte* to, int64_t at,
            int64_t count);

}  // namespace aliquot::mem
