// All-gather, equal or uneven: every rank reads every other's part in place.
// Cost per rank: reads and writes (P-1)/P S from peers, and its own part unless
// in place; one arrival, one wait for the readers.
#include "comm/mem/algorithms.h"
#include "comm/mem/move.h"

namespace aliquot::mem {
namespace {

std::byte* place(const CollOp& op, int32_t q) {
  return op.dst() + op.part_begin(q) * op.in_size;
}

void copy_own(CollOp& op) {
  if (op.src() == place(op, op.me)) return;
  counted_copy(op, place(op, op.me), op.src(),
               op.part_count(op.me) * op.in_size, false);
}

Step inlined(CollOp& op) {
  copy_own(op);
  for (int32_t q = 0; q < op.size; ++q) {
    if (q == op.me) continue;
    counted_copy(op, place(op, q), op.slot(q).payload,
                 op.part_count(q) * op.in_size, true);
  }
  return Step::kDone;
}

// Each starts at itself, so that ranks read different peers at a time.
Step direct(CollOp& op) {
  int32_t q = (op.me + op.peer) % op.size;
  Step step = Step::kDone;
  if (q != op.me || op.src() != place(op, q)) {
    step = copy_from(op, q, &Slot::src, 0, place(op, q),
                     op.part_count(q) * op.in_size);
  }
  if (step != Step::kDone) return step;
  ++op.peer;
  return op.peer == op.size ? Step::kDone : Step::kProgress;
}

void fill(CollOp& op, const Staging& s, uint64_t w, std::byte* stage) {
  int64_t begin = 0;
  int64_t n = window_range(s, w, op.part_count(op.me) * op.in_size, &begin);
  stage_copy(op, stage, op.src() + begin, n);
}

// Own part goes to its place meanwhile.
void take(CollOp& op, const Staging& s, uint64_t w) {
  for (int32_t q = 0; q < op.size; ++q) {
    const bool own = q == op.me;
    int64_t begin = 0;
    int64_t n = window_range(s, w, op.part_count(q) * op.in_size, &begin);
    const std::byte* from = own ? op.src() + begin : staged(op, s, q, w);
    if (own && op.src() == place(op, q)) continue;
    counted_copy(op, place(op, q) + begin, from, n, !own);
  }
}

Step staged_form(CollOp& op) {
  return staged_exchange(op, stage_whole(largest_part(op)), fill, take);
}

}  // namespace

const Algorithm kAllGatherAlgorithm = {inlined, direct, staged_form};

}  // namespace aliquot::mem
