#include "comm/mem/staged.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu.h"

namespace aliquot::mem {
namespace {

constexpr uint64_t kAhead = 1;  // windows filled before one is taken
static_assert(kRing == 2 * kAhead + 2);

Staging stage(int32_t parts, int64_t bytes) {
  Staging s;
  s.parts = std::max(parts, 1);
  s.width = std::min(kPlaceBytes, kStageBytes / kRing / s.parts / 64 * 64);
  s.windows = static_cast<uint64_t>((bytes + s.width - 1) / s.width);
  return s;
}

}  // namespace

Staging stage_whole(int64_t bytes) { return stage(1, bytes); }

Staging stage_parts(int32_t size, int64_t bytes) {
  return stage(size - 1, bytes);
}

Step staged_exchange(CollOp& op, const Staging& s, Fill fill, Take take) {
  if (op.taken == s.windows) return Step::kDone;
  if (s.windows >= kMaxWindows) {
    return op.fail(make_error(ALQ_OUT_OF_RANGE,
                              "operation too large to be staged; use memory of "
                              "alq_buffer_alloc"));
  }
  while (op.filled < s.windows && op.filled <= op.taken + kAhead) {
    fill(op, s, op.filled, staged(op, s, op.me, op.filled));
    op.publish(&Member::staged, ticket(op.number, ++op.filled));
  }
  if (!op.reached(&Member::staged, ticket(op.number, op.taken + 1))) {
    return Step::kWaiting;
  }
  take(op, s, op.taken);
  return ++op.taken == s.windows ? Step::kDone : Step::kProgress;
}

void counted_copy(CollOp& op, void* to, const void* from, int64_t bytes,
                  bool from_peer) {
  if (bytes <= 0) return;
  if (bytes <= kInlineBytes) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  } else {
    kernels::copy_even_cpu({to, from, bytes});
  }
  op.counts.bytes_read += bytes;
  op.counts.bytes_written += bytes;
  if (from_peer) op.counts.peer_bytes_read += bytes;
}

void stage_copy(CollOp& op, void* to, const void* from, int64_t bytes) {
  if (!op.streams_stage) {
    return counted_copy(op, to, from, bytes, false);
  }
  if (bytes <= 0) return;
  kernels::copy_cold_cpu({to, from, bytes});
  kernels::flush_cold_cpu();
  op.counts.bytes_read += bytes;
  op.counts.bytes_written += bytes;
}

void fill_parts(CollOp& op, const Staging& s, uint64_t w, std::byte* stage) {
  for (int32_t q = 0; q < op.size; ++q) {
    if (q == op.me) continue;  // nobody else reads it
    int64_t begin = 0;
    int64_t n = window_range(s, w, op.part_count(q) * op.in_size, &begin);
    stage_copy(op, stage + place_for(s, op.me, q),
               op.src() + op.part_begin(q) * op.in_size + begin, n);
  }
}

}  // namespace aliquot::mem
