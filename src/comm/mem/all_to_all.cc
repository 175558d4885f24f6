// All-to-all: rank r reads part r of every rank's src.  Cost per rank: reads
// and writes S, of it (P-1)/P from peers; one arrival, one wait for readers.
#include "comm/mem/algorithms.h"
#include "comm/mem/move.h"

namespace aliquot::mem {
namespace {

int64_t part_bytes(const CollOp& op) { return op.coll.count * op.in_size; }

std::byte* place(const CollOp& op, int32_t q) {
  return op.dst() + q * part_bytes(op);
}

Step inlined(CollOp& op) {
  for (int32_t q = 0; q < op.size; ++q) {
    const std::byte* from = q == op.me ? op.src() : op.slot(q).payload;
    counted_copy(op, place(op, q), from + op.me * part_bytes(op),
                 part_bytes(op), q != op.me);
  }
  return Step::kDone;
}

Step direct(CollOp& op) {
  int32_t q = (op.me + op.peer) % op.size;
  Step step = copy_from(op, q, &Slot::src, op.me * part_bytes(op), place(op, q),
                        part_bytes(op));
  if (step != Step::kDone) return step;
  ++op.peer;
  return op.peer == op.size ? Step::kDone : Step::kProgress;
}

void take(CollOp& op, const Staging& s, uint64_t w) {
  int64_t begin = 0;
  int64_t n = window_range(s, w, part_bytes(op), &begin);
  for (int32_t q = 0; q < op.size; ++q) {
    const std::byte* from = q == op.me ? op.src() + q * part_bytes(op) + begin
                                       : staged_for_me(op, s, q, w);
    counted_copy(op, place(op, q) + begin, from, n, q != op.me);
  }
}

Step staged_form(CollOp& op) {
  return staged_exchange(op, stage_parts(op.size, part_bytes(op)), fill_parts,
                         take);
}

}  // namespace

const Algorithm kAllToAllAlgorithm = {inlined, direct, staged_form};

}  // namespace aliquot::mem
