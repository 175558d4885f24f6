// Reduce-scatter: rank r receives part r of the sum of all ranks' src.
//
// Owner-chunk: rank r reads part r of every rank's src and adds in rank order.
// Cost per rank: reads S (of it (P-1)/P from peers), writes S/P; one arrival.
// Source: facts on shared memory collectives, docs/design.md.
#include "comm/mem/algorithms.h"
#include "comm/mem/move.h"
#include "comm/mem/staged.h"

namespace aliquot::mem {

void reduce_payloads(CollOp& op, int64_t begin, int64_t count, std::byte* to) {
  const void* srcs[kMaxRanks];
  for (int32_t q = 0; q < op.size; ++q) {
    const std::byte* from = q == op.me ? op.src() : op.slot(q).payload;
    srcs[q] = from + begin * op.in_size;
  }
  reduce(op, srcs, to, begin, count);
}

void take_reduced_part(CollOp& op, const Staging& s, uint64_t w,
                       std::byte* to) {
  int64_t begin = 0;
  int64_t bytes = window_range(s, w, op.part_count(op.me) * op.in_size, &begin);
  const void* srcs[kMaxRanks];
  for (int32_t q = 0; q < op.size; ++q) {
    srcs[q] = q == op.me ? op.src() + op.part_begin(q) * op.in_size + begin
                         : staged_for_me(op, s, q, w);
  }
  begin /= op.in_size;
  reduce(op, srcs, to + begin * op.out_size, op.part_begin(op.me) + begin,
         bytes / op.in_size);
}

int64_t largest_part(const CollOp& op) {
  int64_t most = 0;
  for (int32_t q = 0; q < op.size; ++q) {
    most = op.part_count(q) > most ? op.part_count(q) : most;
  }
  return most * op.in_size;
}

bool nothing_to_reduce(const CollOp& op, const std::byte* to) {
  return op.size == 1 && op.coll.dtype == op.coll.out_dtype &&
         !op.coll.accumulate && !op.coll.factor.has_value() && to == op.src();
}

namespace {

Step inlined(CollOp& op) {
  reduce_payloads(op, op.part_begin(op.me), op.part_count(op.me), op.dst());
  return Step::kDone;
}

Step direct(CollOp& op) {
  if (nothing_to_reduce(op, op.dst())) return Step::kDone;
  return reduce_part(op, op.dst());
}

Step staged_form(CollOp& op) {
  return staged_exchange(op, stage_parts(op.size, largest_part(op)), fill_parts,
                         [](CollOp& o, const Staging& s, uint64_t w) {
                           take_reduced_part(o, s, w, o.dst());
                         });
}

}  // namespace

const Algorithm kReduceScatterAlgorithm = {inlined, direct, staged_form};

}  // namespace aliquot::mem
