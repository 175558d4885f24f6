// All-reduce.
//
// Small (payload in the slots): every rank adds all contributions itself in
// rank order.  One arrival; reads P S.
//
// Large: owner-chunk.  Rank r sums chunk r of every src into chunk r of its
// dst; then each rank copies the other chunks from their owners.  Cost per
// rank: reads S and writes S/P, then reads and writes (P-1)/P S; one arrival,
// one flag between the phases, one wait for the readers.  In place works: chunk
// q of a src is read by rank q alone, before its owner overwrites it.
// Source: Rabenseifner's reduce-scatter + all-gather with direct reads.
#include "comm/mem/algorithms.h"
#include "comm/mem/move.h"

namespace aliquot::mem {
namespace {

std::byte* chunk(const CollOp& op, int32_t q) {
  return op.dst() + op.part_begin(q) * op.out_size;
}

Step inlined(CollOp& op) {
  reduce_payloads(op, 0, op.coll.count, op.dst());
  return Step::kDone;
}

// Phase 0 sums the own chunk, phase 1 copies the others.
Step direct(CollOp& op) {
  if (op.phase == 0) {
    if (nothing_to_reduce(op, op.dst())) return Step::kDone;
    Step step = reduce_part(op, chunk(op, op.me));
    if (step != Step::kDone || op.size == 1) return step;
    op.publish(&Member::reduced, op.number);
    Status status = op.resolve(&Slot::dst);
    if (!status.ok()) return op.fail(std::move(status));
    op.phase = 1;
    op.peer = 1;
  }
  if (op.peer == op.size) return Step::kDone;
  int32_t q = (op.me + op.peer) % op.size;
  if (!op.peer_reached(q, &Member::reduced, op.number)) return Step::kWaiting;
  Step step = copy_from(op, q, &Slot::dst, op.part_begin(q) * op.out_size,
                        chunk(op, q), op.part_count(q) * op.out_size);
  if (step != Step::kDone) return step;
  ++op.peer;
  return op.peer == op.size ? Step::kDone : Step::kProgress;
}

void take_sum(CollOp& op, const Staging& s, uint64_t w) {
  take_reduced_part(op, s, w, chunk(op, op.me));
}

void fill_own_chunk(CollOp& op, const Staging& s, uint64_t w,
                    std::byte* stage) {
  int64_t begin = 0;
  int64_t n = window_range(s, w, op.part_count(op.me) * op.out_size, &begin);
  counted_copy(op, stage, chunk(op, op.me) + begin, n, false);
}

void take_chunks(CollOp& op, const Staging& s, uint64_t w) {
  for (int32_t q = 0; q < op.size; ++q) {
    if (q == op.me) continue;
    int64_t begin = 0;
    int64_t n = window_range(s, w, op.part_count(q) * op.out_size, &begin);
    counted_copy(op, chunk(op, q) + begin, staged(op, s, q, w), n, true);
  }
}

Step staged_form(CollOp& op) {
  int64_t most = largest_part(op);
  Staging sum = stage_parts(op.size, most, 0);
  if (op.phase == 0) {
    Step step = staged_exchange(op, sum, fill_parts, take_sum);
    if (step != Step::kDone) return step;
    op.phase = 1;
    op.window = 0;
  }
  Staging gather = stage_whole(most / op.in_size * op.out_size, sum.windows);
  return staged_exchange(op, gather, fill_own_chunk, take_chunks);
}

}  // namespace

const Algorithm kAllReduceAlgorithm = {inlined, direct, staged_form};

}  // namespace aliquot::mem
