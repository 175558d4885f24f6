// memcpy past the caches, for memory that another core reads next.
//
// A line that a peer has read must be taken back from its cache before it can
// be written again, which between distant cores costs several times the copy.
// Streaming stores write to memory instead; where cores share a cache, memcpy
// is faster.  calibrate() finds out which.
#pragma once

#include <cstdint>

namespace aliquot::mem {

// `to` may have any address; whole cache lines are streamed.  Visible to
// whoever sees a later store of this thread.
void stream_copy(void* to, const void* from, int64_t bytes);

}  // namespace aliquot::mem
