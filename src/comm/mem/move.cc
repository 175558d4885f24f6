// Sums: linear in rank order, in the accumulate dtype, rounded once; avg is
// the sum times 1/size in the accumulate dtype; a premultiplied sum is one of
// products that were rounded.
#include "comm/mem/move.h"

#include <algorithm>
#include <cstring>

#include "comm/mem/stream_copy.h"
#include "kernels/cpu/cpu.h"

namespace aliquot::mem {
namespace {

// A block small enough to stay in a core's cache and to look up in between.
constexpr int64_t kBlock = 262144;
// One system call per block: larger.
constexpr int64_t kCallBlock = int64_t{1} << 20;
// Sources fetched for a block of a sum, together.
constexpr int64_t kFetched = 262144;
constexpr int64_t kStreamBlock = 16384;

// Index of the first element that is not finite, or -1.
int64_t first_bad(const void* src, int64_t count, Dtype dtype) {
  int64_t at = -1;
  kernels::finite_cpu({&at, src, count, dtype, 0, 0});
  return at;
}

void note_bad(const Coll& coll, int32_t rank, int64_t element) {
  if (element < 0) return;
  BadSource& bad = *coll.bad;
  element += coll.bad_base;
  if (bad.element < 0 || rank < bad.rank ||
      (rank == bad.rank && element < bad.element)) {
    bad = {element, rank};
  }
}

// A contribution that is not finite makes the sum so: only then are the sources
// looked at.  Own elements that the sum overwrites are looked at before; they
// are read for it at that time anyway.
class BadSearch {
 public:
  BadSearch(const CollOp& op, const void* const* srcs, const std::byte* to,
            int64_t count)
      : op_(op), srcs_(srcs), to_(to), count_(count) {
    overwritten_ = op.coll.bad != nullptr && srcs[op.me] == to;
    if (overwritten_) own_ = first_bad(to, count, op.coll.dtype);
  }
  void finish(int64_t at) const {
    if (op_.coll.bad == nullptr) return;
    if (first_bad(to_, count_, op_.coll.out_dtype) < 0) return;
    for (int32_t q = 0; q < op_.size; ++q) {
      int64_t found = q == op_.me && overwritten_
                          ? own_
                          : first_bad(srcs_[q], count_, op_.coll.dtype);
      if (found >= 0) return note_bad(op_.coll, q, at + found);
    }
  }

 private:
  const CollOp& op_;
  const void* const* srcs_;
  const std::byte* to_;
  const int64_t count_;
  bool overwritten_ = false;
  int64_t own_ = -1;
};

void run_kernel(const CollOp& op, const void* const* srcs, std::byte* to,
                int64_t count) {
  if (op.coll.factor.has_value()) {
    double factors[kMaxRanks];
    for (int32_t q = 0; q < op.size; ++q) {
      factors[q] = q == op.me ? *op.coll.factor : op.slot(q).factor;
    }
    kernels::premul_cpu({to, srcs, factors, op.size, count, op.coll.dtype, 0});
    return;
  }
  const bool avg = op.coll.op == ALQ_AVG;
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
}

// The sums of an all-reduce are read by all other ranks: by way of a block in
// the first cache, and past the others where that is faster.
void reduce_streamed(const CollOp& op, const void* const* srcs, std::byte* to,
                     int64_t count) {
  alignas(64) std::byte block[kStreamBlock];
  const int64_t most = kStreamBlock / std::max(op.in_size, op.out_size);
  const void* at[kMaxRanks];
  for (int64_t i = 0; i < count; i += most) {
    const int64_t n = std::min(most, count - i);
    for (int32_t q = 0; q < op.size; ++q) {
      at[q] = static_cast<const std::byte*>(srcs[q]) + i * op.in_size;
    }
    run_kernel(op, at, block, n);
    stream_copy(to + i * op.out_size, block, n * op.out_size);
  }
}

}  // namespace

Step copy_from(CollOp& op, int32_t q, Location Slot::*which, int64_t offset,
               std::byte* to, int64_t bytes) {
  const std::byte* from = op.base[q];
  int64_t n = std::min(bytes - op.pos, from != nullptr ? kBlock : kCallBlock);
  if (n > 0 && from != nullptr && op.streams && op.dst() == op.src()) {
    // The other ranks read it in the next sum.
    stream_copy(to + op.pos, from + offset + op.pos, n);
  } else if (n > 0 && from != nullptr) {
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

void reduce(CollOp& op, const void* const* srcs, std::byte* to, int64_t at,
            int64_t count) {
  if (count == 0) return;
  BadSearch search(op, srcs, to, count);
  if (op.streams) {
    reduce_streamed(op, srcs, to, count);
  } else {
    run_kernel(op, srcs, to, count);
  }
  search.finish(at);
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
  reduce(op, srcs, to + op.pos * op.out_size, at, n);
  op.pos += n;
  if (op.pos < total) return Step::kProgress;
  op.pos = 0;
  return Step::kDone;
}

}  // namespace aliquot::mem
