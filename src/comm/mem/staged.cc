#include "comm/mem/staged.h"

#include <algorithm>
#include <cstring>

namespace aliquot::mem {
namespace {

uint64_t windows_for(int64_t bytes, int64_t width) {
  return static_cast<uint64_t>((bytes + width - 1) / width);
}

}  // namespace

Staging stage_whole(int64_t bytes, uint64_t first) {
  return {1, kStageBytes, first, windows_for(bytes, kStageBytes)};
}

Staging stage_parts(int32_t size, int64_t bytes, uint64_t first) {
  int64_t width = kStageBytes / size / 64 * 64;
  return {size, width, first, windows_for(bytes, width)};
}

Step staged_exchange(CollOp& op, const Staging& s, Fill fill, Take take) {
  if (op.window == s.windows) return Step::kDone;
  const uint64_t w = op.window, global = s.first + w;
  if (global >= kMaxWindows) {
    return op.fail(make_error(ALQ_OUT_OF_RANGE,
                              "operation too large to be staged; use memory of "
                              "alq_buffer_alloc"));
  }
  if (!op.published) {
    // All peers announced this operation, so they are done with earlier ones.
    if (global >= 2 &&
        !op.reached(&Member::consumed, ticket(op.number, global - 1))) {
      return Step::kWaiting;
    }
    fill(op, s, w, op.core.control.stage(op.me, global));
    op.publish(&Member::staged, ticket(op.number, global + 1));
    op.published = true;
  }
  if (!op.reached(&Member::staged, ticket(op.number, global + 1))) {
    return Step::kWaiting;
  }
  take(op, s, w);
  op.publish(&Member::consumed, ticket(op.number, global + 1));
  op.published = false;
  ++op.window;
  return op.window == s.windows ? Step::kDone : Step::kProgress;
}

void counted_copy(CollOp& op, void* to, const void* from, int64_t bytes,
                  bool from_peer) {
  if (bytes <= 0) return;
  std::memcpy(to, from, static_cast<size_t>(bytes));
  op.counts.bytes_read += bytes;
  op.counts.bytes_written += bytes;
  if (from_peer) op.counts.peer_bytes_read += bytes;
}

void fill_parts(CollOp& op, const Staging& s, uint64_t w, std::byte* stage) {
  for (int32_t q = 0; q < op.size; ++q) {
    if (q == op.me) continue;  // nobody else reads it
    int64_t begin = 0;
    int64_t n = window_range(s, w, op.part_count(q) * op.in_size, &begin);
    counted_copy(op, stage + q * s.width,
                 op.src() + op.part_begin(q) * op.in_size + begin, n, false);
  }
}

}  // namespace aliquot::mem
