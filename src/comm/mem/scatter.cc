// Scatter, equal or uneven: every rank reads its part of the root's buffer.
// Cost: each rank reads and writes its part, the root's less in place.  One
// arrival; the root waits for the readers.
#include "comm/mem/algorithms.h"
#include "comm/mem/move.h"

namespace aliquot::mem {
namespace {

bool is_root(const CollOp& op) { return op.me == op.coll.root; }

int64_t begin_bytes(const CollOp& op, int32_t q) {
  return op.part_begin(q) * op.in_size;
}

int64_t part_bytes(const CollOp& op, int32_t q) {
  return op.part_count(q) * op.in_size;
}

// The root's own part lies where it shall be.
bool stays(const CollOp& op) {
  return is_root(op) && op.src() + begin_bytes(op, op.me) == op.dst();
}

void copy_own(CollOp& op) {
  if (!is_root(op) || stays(op)) return;
  counted_copy(op, op.dst(), op.src() + begin_bytes(op, op.me),
               part_bytes(op, op.me), false);
}

Step inlined(CollOp& op) {
  copy_own(op);
  if (!is_root(op)) {
    counted_copy(op, op.dst(),
                 op.slot(op.coll.root).payload + begin_bytes(op, op.me),
                 part_bytes(op, op.me), true);
  }
  return Step::kDone;
}

Step direct(CollOp& op) {
  if (stays(op)) return Step::kDone;
  return copy_from(op, op.coll.root, &Slot::src, begin_bytes(op, op.me),
                   op.dst(), part_bytes(op, op.me));
}

void fill(CollOp& op, const Staging& s, uint64_t w, std::byte* stage) {
  if (is_root(op)) fill_parts(op, s, w, stage);
}

void take(CollOp& op, const Staging& s, uint64_t w) {
  if (w == 0) copy_own(op);
  if (is_root(op)) return;
  int64_t begin = 0;
  int64_t n = window_range(s, w, part_bytes(op, op.me), &begin);
  counted_copy(op, op.dst() + begin, staged_for_me(op, s, op.coll.root, w), n,
               true);
}

Step staged_form(CollOp& op) {
  return staged_exchange(op, stage_parts(op.size, largest_part(op)), fill,
                         take);
}

}  // namespace

const Algorithm kScatterAlgorithm = {inlined, direct, staged_form};

}  // namespace aliquot::mem
