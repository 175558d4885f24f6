// Staged exchange: for memory that peers can neither map nor read.  Each rank
// copies its contribution, a window at a time, into its two staging windows in
// the control block; peers take their part from there.
//
// All ranks step through the same windows.  Window w may be filled when all
// peers have taken w - 2, so filling overlaps with peers' reading.  Cost: one
// more copy than direct, and two flags per window.
#pragma once

#include "comm/mem/coll_op.h"

namespace aliquot::mem {

// How a window is laid out: `parts` equal places of `width` bytes.
struct Staging {
  int32_t parts = 1;
  int64_t width = kStageBytes;
  uint64_t first = 0;    // windows of earlier phases of the operation
  uint64_t windows = 0;  // of this phase
};

// One place for the whole contribution, at most `bytes` long on any rank.
Staging stage_whole(int64_t bytes, uint64_t first);
// One place per destination, at most `bytes` long each.
Staging stage_parts(int32_t size, int64_t bytes, uint64_t first);

// What of `total` bytes lies in window w: *begin and the length.
inline int64_t window_range(const Staging& s, uint64_t w, int64_t total,
                            int64_t* begin) {
  *begin = static_cast<int64_t>(w) * s.width;
  int64_t length = total - *begin;
  return length < 0 ? 0 : length < s.width ? length : s.width;
}

// fill copies own data of window w to `stage`; take is called when all peers
// have filled theirs.
using Fill = void (*)(CollOp&, const Staging&, uint64_t w, std::byte* stage);
using Take = void (*)(CollOp&, const Staging&, uint64_t w);
Step staged_exchange(CollOp& op, const Staging& s, Fill fill, Take take);

// Peer q's window w.
inline const std::byte* staged(const CollOp& op, const Staging& s, int32_t q,
                               uint64_t w) {
  return op.core.control.stage(q, s.first + w);
}

// memcpy that counts.
void counted_copy(CollOp& op, void* to, const void* from, int64_t bytes,
                  bool from_peer);

// Fills with the ranges of all parts of src, one place per rank.
void fill_parts(CollOp& op, const Staging& s, uint64_t w, std::byte* stage);

}  // namespace aliquot::mem
