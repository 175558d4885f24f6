// Staged exchange: for memory that peers can neither map nor read.  Each rank
// copies its contribution, a window at a time, into its ring of staging windows
// in the control block; peers take their part from there.
//
// All ranks step through the same windows, and each fills one window ahead of
// the one it takes, so that nobody waits for a peer that is as fast.  Windows
// are small: what was filled is still in a cache when it is taken.
//
// Why no flag says that a window was taken: a rank that has filled f windows
// has taken f - 2, so one that takes window t, which all have filled, knows
// that all have taken t - 2.  It fills up to t + 1 then: a ring of four windows
// is never written before it was read.
//
// Cost: one more copy than direct, and one flag per window.
#pragma once

#include "comm/mem/coll_op.h"

namespace aliquot::mem {

constexpr int64_t kRing = 4;            // windows of a rank
constexpr int64_t kPlaceBytes = 65536;  // at most
static_assert(kRing * kPlaceBytes <= kStageBytes);

// How a window is laid out: `parts` equal places of `width` bytes.
struct Staging {
  int32_t parts = 1;
  int64_t width = 0;
  uint64_t windows = 0;
};

// One place for the whole contribution, at most `bytes` long on any rank.
Staging stage_whole(int64_t bytes);
// One place per other rank, at most `bytes` long each.
Staging stage_parts(int32_t size, int64_t bytes);

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

// Rank q's window w.
inline std::byte* staged(const CollOp& op, const Staging& s, int32_t q,
                         uint64_t w) {
  return op.core.control.stage(q) +
         static_cast<int64_t>(w % kRing) * s.parts * s.width;
}
// Where in a window of stage_parts lies what `from` has for `to`.
inline int64_t place_for(const Staging& s, int32_t from, int32_t to) {
  return (to < from ? to : to - 1) * s.width;
}
// What q has for this rank in window w.
inline const std::byte* staged_for_me(const CollOp& op, const Staging& s,
                                      int32_t q, uint64_t w) {
  return staged(op, s, q, w) + place_for(s, q, op.me);
}

// memcpy that counts.
void counted_copy(CollOp& op, void* to, const void* from, int64_t bytes,
                  bool from_peer);

// The same into a staging window: past the caches where that is faster.
void stage_copy(CollOp& op, void* to, const void* from, int64_t bytes);

// Fills with the ranges of all parts of src, one place per rank.
void fill_parts(CollOp& op, const Staging& s, uint64_t w, std::byte* stage);

}  // namespace aliquot::mem
