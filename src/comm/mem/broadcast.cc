// Broadcast: every rank reads the root's buffer.  Cost per rank other than the
// root: reads and writes S; one arrival; the root waits for the readers.
#include "comm/mem/algorithms.h"
#include "comm/mem/move.h"

namespace aliquot::mem {
namespace {

int64_t bytes(const CollOp& op) { return op.coll.count * op.in_size; }
bool is_root(const CollOp& op) { return op.me == op.coll.root; }

// The root's src may be another buffer than its dst.
void copy_own(CollOp& op) {
  if (is_root(op) && op.src() != op.dst()) {
    counted_copy(op, op.dst(), op.src(), bytes(op), false);
  }
}

Step inlined(CollOp& op) {
  copy_own(op);
  if (!is_root(op)) {
    counted_copy(op, op.dst(), op.slot(op.coll.root).payload, bytes(op), true);
  }
  return Step::kDone;
}

Step direct(CollOp& op) {
  if (is_root(op) && op.src() == op.dst()) return Step::kDone;
  return copy_from(op, op.coll.root, &Slot::src, 0, op.dst(), bytes(op));
}

void fill(CollOp& op, const Staging& s, uint64_t w, std::byte* stage) {
  if (!is_root(op)) return;
  int64_t begin = 0;
  int64_t n = window_range(s, w, bytes(op), &begin);
  stage_copy(op, stage, op.src() + begin, n);
}

void take(CollOp& op, const Staging& s, uint64_t w) {
  if (w == 0) copy_own(op);
  if (is_root(op)) return;
  int64_t begin = 0;
  int64_t n = window_range(s, w, bytes(op), &begin);
  counted_copy(op, op.dst() + begin, staged(op, s, op.coll.root, w), n, true);
}

Step staged_form(CollOp& op) {
  return staged_exchange(op, stage_whole(bytes(op)), fill, take);
}

}  // namespace

const Algorithm kBroadcastAlgorithm = {inlined, direct, staged_form};

}  // namespace aliquot::mem
