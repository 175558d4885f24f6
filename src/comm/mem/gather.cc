// Gather, equal or uneven: the root reads every rank's part.  Cost: the root
// reads and writes S, (P-1)/P of it from peers, less its own part in place; the
// others nothing.  One arrival; the others wait for the root to have read.
#include "comm/mem/algorithms.h"
#include "comm/mem/move.h"

namespace aliquot::mem {
namespace {

bool is_root(const CollOp& op) { return op.me == op.coll.root; }

std::byte* place(const CollOp& op, int32_t q) {
  return op.dst() + op.part_begin(q) * op.in_size;
}

int64_t part_bytes(const CollOp& op, int32_t q) {
  return op.part_count(q) * op.in_size;
}

void copy_own(CollOp& op) {
  if (op.src() == place(op, op.me)) return;
  counted_copy(op, place(op, op.me), op.src(), part_bytes(op, op.me), false);
}

Step inlined(CollOp& op) {
  if (!is_root(op)) return Step::kDone;
  copy_own(op);
  for (int32_t q = 0; q < op.size; ++q) {
    if (q == op.me) continue;
    counted_copy(op, place(op, q), op.slot(q).payload, part_bytes(op, q), true);
  }
  return Step::kDone;
}

Step direct(CollOp& op) {
  if (!is_root(op)) return Step::kDone;
  int32_t q = op.peer;
  Step step = Step::kDone;
  if (q != op.me || op.src() != place(op, q)) {
    step = copy_from(op, q, &Slot::src, 0, place(op, q), part_bytes(op, q));
  }
  if (step != Step::kDone) return step;
  ++op.peer;
  return op.peer == op.size ? Step::kDone : Step::kProgress;
}

void fill(CollOp& op, const Staging& s, uint64_t w, std::byte* stage) {
  if (is_root(op)) return;
  int64_t begin = 0;
  int64_t n = window_range(s, w, part_bytes(op, op.me), &begin);
  stage_copy(op, stage, op.src() + begin, n);
}

void take(CollOp& op, const Staging& s, uint64_t w) {
  if (!is_root(op)) return;
  if (w == 0) copy_own(op);
  for (int32_t q = 0; q < op.size; ++q) {
    if (q == op.me) continue;
    int64_t begin = 0;
    int64_t n = window_range(s, w, part_bytes(op, q), &begin);
    counted_copy(op, place(op, q) + begin, staged(op, s, q, w), n, true);
  }
}

Step staged_form(CollOp& op) {
  return staged_exchange(op, stage_whole(largest_part(op)), fill, take);
}

}  // namespace

const Algorithm kGatherAlgorithm = {inlined, direct, staged_form};

}  // namespace aliquot::mem
