// Shrink: the survivors of a failed group agree on who goes on, and on the
// control block of the next generation.
//
// All of it happens in the old control block, which outlives whoever made it.
// One try: members say that they came (`joined`); when nobody who is alive is
// missing, or time is up, whoever notices first proposes who came (`members`,
// one compare-and-swap, so there is one answer); the lowest of them makes the
// new block, all map it and say so (`attached`), and one more compare-and-swap
// commits or abandons the try (`outcome`).  A rank goes on only after a commit,
// which is there once and names the members: two survivors can not end with
// different lists.  A rank that dies, stops or gives up in between makes
// the others abandon the try and begin the next one without it, so there are at
// most as many tries as ranks.
//
// A removed rank never learns of the new block and reads in the old one that it
// was removed.  Cost: three rounds of flags and one mapping.
#pragma once

#include <memory>
#include <vector>

#include "comm/mem/core.h"

namespace aliquot::mem {

struct Shrunk {
  std::shared_ptr<Segment> segment;  // control block of the new group
  std::vector<int32_t> members;      // ranks in the old one, ascending
};

Result<Shrunk> agree_to_shrink(GroupCore& core, Deadline deadline);

// The name of a group in a later generation: "world#2".
std::string generation_name(const std::string& base, uint64_t generation);

// Whether a rank of the group with this control block was removed from it.
inline bool removed(const Control& control, int32_t rank) {
  uint64_t members = control.shrunk().members.load();
  return members != 0 && (members >> rank & 1) == 0;
}

// Who went on, as text.
std::string survivors_text(const GroupCore& core);

}  // namespace aliquot::mem
