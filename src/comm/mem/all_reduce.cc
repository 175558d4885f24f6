// All-reduce.
//
// Small (payload in the slots): every rank adds all contributions itself in
// rank order.  One arrival; reads P S.
//
// Large: owner-chunk.  Rank r alone reads chunk r of every src, so in place
// works.  Pushed: it writes the sum into chunk r of every dst, while it is in
// its first cache.  Cost per rank: reads S and writes S; one arrival, one wait.
// Pulled, where peers' memory may not be written: it sums into its own dst;
// then each rank copies the other chunks from their owners.  Cost: reads S and
// writes S/P, then reads and writes (P-1)/P S; one flag more, and lines that
// several cores have read are overwritten.
//
// Source: Rabenseifner's reduce-scatter + all-gather with direct accesses.
#include <algorithm>

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

Step push(CollOp& op) {
  if (op.phase == 0) {
    Status status = op.resolve_results();
    if (!status.ok()) return op.fail(std::move(status));
    op.phase = 1;
  }
  return reduce_part(op, chunk(op, op.me));
}

// Phase 0 sums the own chunk, phase 1 copies the others.
Step direct(CollOp& op) {
  if (op.pushes) return push(op);
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

// Staged: chunks go in blocks of as many elements as a place holds, and each
// window either sends block k of all chunks to their owners, or block k of the
// sums to everyone, so that a sum is passed on while it is in the cache.
// Windows: sum 0, sum 1, gather 0, sum 2, gather 1, ..., sum n (empty), gather
// n - 1.  So sum k is taken before gather k is filled, one window ahead.
struct Turn {
  bool sums;
  int64_t first;  // element of a chunk
};

int64_t block_elements(const CollOp& op, const Staging& s) {
  return s.width / std::max(op.in_size, op.out_size);
}

Turn turn(const CollOp& op, const Staging& s, uint64_t w) {
  const bool sums = w == 0 || w % 2 == 1;
  const uint64_t block = sums ? (w + 1) / 2 : w / 2 - 1;
  return {sums, static_cast<int64_t>(block) * block_elements(op, s)};
}

// Elements of q's chunk in the block that begins at `first`.
int64_t block_count(const CollOp& op, const Staging& s, int32_t q,
                    int64_t first) {
  return std::clamp<int64_t>(op.part_count(q) - first, 0,
                             block_elements(op, s));
}

void fill(CollOp& op, const Staging& s, uint64_t w, std::byte* stage) {
  const Turn t = turn(op, s, w);
  if (!t.sums) {
    stage_copy(op, stage, chunk(op, op.me) + t.first * op.out_size,
               block_count(op, s, op.me, t.first) * op.out_size);
    return;
  }
  for (int32_t q = 0; q < op.size; ++q) {
    if (q == op.me) continue;
    stage_copy(op, stage + place_for(s, op.me, q),
               op.src() + (op.part_begin(q) + t.first) * op.in_size,
               block_count(op, s, q, t.first) * op.in_size);
  }
}

void take(CollOp& op, const Staging& s, uint64_t w) {
  const Turn t = turn(op, s, w);
  if (!t.sums) {
    for (int32_t q = 0; q < op.size; ++q) {
      if (q == op.me) continue;
      counted_copy(op, chunk(op, q) + t.first * op.out_size,
                   staged(op, s, q, w),
                   block_count(op, s, q, t.first) * op.out_size, true);
    }
    return;
  }
  const int64_t at = op.part_begin(op.me) + t.first;
  const void* srcs[kMaxRanks];
  for (int32_t q = 0; q < op.size; ++q) {
    srcs[q] =
        q == op.me ? op.src() + at * op.in_size : staged_for_me(op, s, q, w);
  }
  reduce(op, srcs, op.dst() + at * op.out_size, at,
         block_count(op, s, op.me, t.first));
}

Step staged_form(CollOp& op) {
  Staging s = stage_parts(op.size, 0);
  const int64_t most = largest_part(op) / op.in_size;
  const int64_t block = block_elements(op, s);
  s.windows = 2 * static_cast<uint64_t>((most + block - 1) / block) + 1;
  return staged_exchange(op, s, fill, take);
}

}  // namespace

const Algorithm kAllReduceAlgorithm = {inlined, direct, staged_form};

}  // namespace aliquot::mem
