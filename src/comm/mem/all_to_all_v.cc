// All-to-all with counts per pair: rank r reads from every rank q what q has
// for it.  Cost per rank: reads and writes what it receives; one arrival, one
// wait for readers.
//
// Counts differ between ranks, so they are announced in the slots (the header
// of the payload) and compared pair by pair; what a small source has for all
// travels behind them.
#include <algorithm>
#include <cstring>

#include "comm/mem/algorithms.h"
#include "comm/mem/move.h"

namespace aliquot::mem {
namespace {

int64_t recv_bytes(const CollOp& op, int32_t q) {
  return op.coll.recv_counts[static_cast<size_t>(q)] * op.in_size;
}

std::byte* place(const CollOp& op, int32_t q) {
  int64_t begin = 0;
  for (int32_t i = 0; i < q; ++i) begin += recv_bytes(op, i);
  return op.dst() + begin;
}

// Where in q's src this rank's part begins, in bytes.
int64_t begin_at(const CollOp& op, int32_t q) {
  int64_t begin = 0;
  for (int32_t i = 0; i < op.me; ++i) begin += sent_count(op, q, i);
  return begin * op.in_size;
}

// From the peers' memory, or their slots (see CollOp::resolve).
Step direct(CollOp& op) {
  int32_t q = (op.me + op.peer) % op.size;
  int64_t begin = begin_at(op, q), bytes = recv_bytes(op, q);
  if (q != op.me && bytes > 0 &&
      (begin < 0 || begin > op.slot(q).src.bytes - bytes)) {
    return op.fail(make_error(ALQ_INTERNAL,
                              "rank {} announced less memory than it sends",
                              op.core.world_rank(q))
                       .with_rank(op.core.world_rank(q)));
  }
  Step step = copy_from(op, q, &Slot::src, begin, place(op, q), bytes);
  if (step != Step::kDone) return step;
  ++op.peer;
  return op.peer == op.size ? Step::kDone : Step::kProgress;
}

void take(CollOp& op, const Staging& s, uint64_t w) {
  for (int32_t q = 0; q < op.size; ++q) {
    int64_t begin = 0;
    int64_t n = window_range(s, w, recv_bytes(op, q), &begin);
    const std::byte* from = q == op.me ? op.src() + begin_at(op, q) + begin
                                       : staged_for_me(op, s, q, w);
    counted_copy(op, place(op, q) + begin, from, n, q != op.me);
  }
}

Step staged_form(CollOp& op) {
  int64_t most = 0;
  for (int32_t q = 0; q < op.size; ++q) {
    for (int32_t r = 0; r < op.size; ++r) {
      most = std::max(most, sent_count(op, q, r));
    }
  }
  return staged_exchange(op, stage_parts(op.size, most * op.in_size),
                         fill_parts, take);
}

}  // namespace

int64_t sent_count(const CollOp& op, int32_t q, int32_t r) {
  if (q == op.me) return op.coll.counts[static_cast<size_t>(r)];
  int64_t count = 0;
  std::memcpy(&count, op.slot(q).payload + r * int64_t{sizeof count},
              sizeof count);
  return count;
}

Status compare_pairs(const CollOp& op) {
  for (int32_t q = 0; q < op.size; ++q) {
    int64_t sent = sent_count(op, q, op.me);
    int64_t expected = op.coll.recv_counts[static_cast<size_t>(q)];
    if (sent == expected) continue;
    return make_error(ALQ_RANK_MISMATCH,
                      "operation {} of group \"{}\", all_to_all_v: rank {} "
                      "sends {} elements to rank {}, which expects {}",
                      op.number, op.core.name, op.core.world_rank(q), sent,
                      op.core.world_rank(op.me), expected)
        .with_rank(op.core.world_rank(q));
  }
  return {};
}

const Algorithm kAllToAllVAlgorithm = {nullptr, direct, staged_form};

}  // namespace aliquot::mem
