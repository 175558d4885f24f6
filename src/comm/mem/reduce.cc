// Reduce to a root: the root sums all ranks' buffers in rank order.  Cost: the
// root reads P S and writes S; the others nothing.  One arrival; the others
// wait for the root to have read.  (As a reduce-scatter whose one part is the
// root's.)
#include "comm/mem/algorithms.h"
#include "comm/mem/move.h"

namespace aliquot::mem {
namespace {

bool is_root(const CollOp& op) { return op.me == op.coll.root; }

Step inlined(CollOp& op) {
  if (is_root(op)) reduce_payloads(op, 0, op.coll.count, op.dst());
  return Step::kDone;
}

Step direct(CollOp& op) {
  if (!is_root(op) || nothing_to_reduce(op, op.dst())) return Step::kDone;
  return reduce_part(op, op.dst());
}

void fill(CollOp& op, const Staging& s, uint64_t w, std::byte* stage) {
  if (is_root(op)) return;
  int64_t begin = 0;
  int64_t n = window_range(s, w, op.coll.count * op.in_size, &begin);
  stage_copy(op, stage, op.src() + begin, n);
}

void take(CollOp& op, const Staging& s, uint64_t w) {
  if (!is_root(op)) return;
  int64_t begin = 0;
  int64_t bytes = window_range(s, w, op.coll.count * op.in_size, &begin);
  const void* srcs[kMaxRanks];
  for (int32_t q = 0; q < op.size; ++q) {
    srcs[q] = q == op.me ? op.src() + begin : staged(op, s, q, w);
  }
  reduce(op, srcs, op.dst() + begin / op.in_size * op.out_size,
         begin / op.in_size, bytes / op.in_size);
}

Step staged_form(CollOp& op) {
  return staged_exchange(op, stage_whole(op.coll.count * op.in_size), fill,
                         take);
}

}  // namespace

const Algorithm kReduceAlgorithm = {inlined, direct, staged_form};

}  // namespace aliquot::mem
