// Copies of windows between ranks.
//
// stream_copy writes past the caches, for memory that another core reads next.
// A line that a peer has read must be taken back from its cache before it can
// be written again, which between distant cores costs several times the copy.
// Streaming stores write to memory instead; where cores share a cache, ordinary
// ones are faster.  calibrate() finds out which.
//
// block_copy is memcpy at the same speed wherever both sides lie: memcpy's
// string instructions are half as fast where the two differ within a line, as
// windows and memory from malloc do.
#pragma once

#include <cstdint>

namespace aliquot::mem {

// Any addresses; whole cache lines of `to` are streamed.  Visible to whoever
// sees a later store of this thread.
void stream_copy(void* to, const void* from, int64_t bytes);
void block_copy(void* to, const void* from, int64_t bytes);

}  // namespace aliquot::mem
