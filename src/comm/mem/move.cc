// Sums: linear in rank order, in the accumulate dtype, rounded once; avg is
// the sum times 1/size in the accumulate dtype.
#include "comm/mem/move.h"

#include <algorithm>
#include <cstring>

namespace aliquot::mem {
namespace {

// A block small enough to stay in a core's cache and to look up in between.
constexpr int64_t kBlock = 262144;
// One system call per block: larger.
constexpr int64_t kCallBlock = int64_t{1} << 20;
// Sources fetched for a block of a sum, together.
constexpr int64_t kFetched = 262144;

}  // namespace

Step copy_from(CollOp& op, int32_t q, Location Slot::*which, int64_t offset,
               std::byte* to, int64_t bytes) {
  const std::byte* from = op.base[q];
  int64_t n = std::min(bytes - op.pos, from != nullptr ? kBlock : kCallBlock);
  if (n > 0 && from != nullptr) {
    std::memcpy(to + op.pos, from + offset + op.pos, static_cast<size_t>(n));
  } else if (n > 0) {
    Status status = op.fetch(q, which, offset + op.pos, to + op.pos, n);
    if (!status.ok()) return op.fail(std::move(status));
  }
  op.pos += n;
  op.counts.bytes_read += n;
  op.counts.bytes_written += n;
  if (q != op.me) op.counts.peer_bytes_read += n;
  if (op.pos < bytes) return Step::kProgress;
  op.pos = 0;
  return Step::kDone;
}

void reduce(CollOp& op, const void* const* srcs, std::byte* to, int64_t count) {
  if (count == 0) return;
  bool avg = op.coll.op == ALQ_AVG;
  kernels::ReduceArgs args{};
  args.dst = to;
  args.srcs = srcs;
  args.n = op.size;
  args.count = count;
  args.in = op.coll.dtype;
  args.out = op.coll.out_dtype;
  args.op = avg ? ALQ_SUM : op.coll.op;
  args.add = op.coll.accumulate ? 1 : 0;
  args.scale = avg ? 1.0 / op.size : 1.0;
  kernels::reduce_cpu(args);
  op.counts.bytes_read += count * op.in_size * op.size;
  op.counts.peer_bytes_read += count * op.in_size * (op.size - 1);
  op.counts.bytes_written += count * op.out_size;
  if (op.coll.accumulate) op.counts.bytes_read += count * op.out_size;
}

Step reduce_part(CollOp& op, std::byte* to) {
  const int64_t total = op.part_count(op.me);
  const int64_t at = op.part_begin(op.me) + op.pos;
  int32_t fetched = 0;
  for (int32_t q = 0; q < op.size; ++q) fetched += op.base[q] == nullptr;
  int64_t bytes = kBlock;
  if (fetched > 0) {
    bytes = std::max<int64_t>(kFetched / fetched / 4096 * 4096, 16384);
  }
  int64_t n = std::min(total - op.pos, bytes / op.in_size);
  if (n <= 0) {
    op.pos = 0;
    return Step::kDone;
  }
  std::byte* scratch = nullptr;
  if (fetched > 0) {
    scratch = op.core.scratch.get(fetched * bytes);
    if (scratch == nullptr) {
      return op.fail(make_error(ALQ_RESOURCE_EXHAUSTED,
                                "no memory for {} bytes of scratch",
                                fetched * bytes));
    }
  }
  const void* srcs[kMaxRanks];
  for (int32_t q = 0; q < op.size; ++q) {
    if (op.base[q] != nullptr) {
      srcs[q] = op.base[q] + at * op.in_size;
      continue;
    }
    Status status =
        op.fetch(q, &Slot::src, at * op.in_size, scratch, n * op.in_size);
    if (!status.ok()) return op.fail(std::move(status));
    // The copy through scratch moves the bytes once more.
    op.counts.bytes_read += n * op.in_size;
    op.counts.bytes_written += n * op.in_size;
    srcs[q] = scratch;
    scratch += bytes;
  }
  reduce(op, srcs, to + op.pos * op.out_size, n);
  op.pos += n;
  if (op.pos < total) return Step::kProgress;
  op.pos = 0;
  return Step::kDone;
}

}  // namespace aliquot::mem
