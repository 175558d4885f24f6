// Sums: linear in rank order, in the accumulate dtype, rounded once; avg is
// the sum times 1/size in the accumulate dtype; a premultiplied sum is one of
// products that were rounded.
#include "comm/mem/move.h"

#include <algorithm>

#include "comm/mem/fenced_copy.h"
#include "kernels/cpu/cpu.h"

namespace aliquot::mem {
namespace {

// A block small enough to stay in a core's cache and to look up in between.
constexpr int64_t kBlock = 262144;
// One system call per block: larger.
constexpr int64_t kCallBlock = int64_t{4} << 20;
// Sources fetched for a block of a sum, together: still in a core's cache, and
// few calls, each of which looks up and pins pages of another process.
constexpr int64_t kFetched = int64_t{1} << 20;
// A piece of a sum stays in the first-level cache.
constexpr int64_t kPiece = 8192;
// Results from this size on are larger than a core's part of the caches.
constexpr int64_t kColdBytes = int64_t{32} << 20;

// Is it better to write a result of so many bytes past the caches?
bool bypasses(const CollOp& op, int64_t bytes) {
  return op.coll.cold || bytes >= kColdBytes;
}

// Index of the first element that is not finite, or -1.
int64_t first_bad(const void* src, int64_t count, Dtype dtype) {
  int64_t at = -1;
  kernels::finite_cpu({&at, src, count, dtype, 0, 0});
  return at;
}

void note_bad(const Coll& coll, int32_t rank, int64_t element) {
  BadSource& bad = *coll.bad;
  if (bad.element < 0 || rank < bad.rank ||
      (rank == bad.rank && element < bad.element)) {
    bad = {element, rank};
  }
}

struct Range {
  int64_t begin = 0, end = 0;
};

// A piece of a sum: `count` elements of the sources, from `at` of every src.
struct Piece {
  const void* srcs[kMaxRanks];
  int64_t at, count;
};

// A contribution that is not finite makes the sum so: only then are the
// sources looked at.
void find_bad(const CollOp& op, const Piece& piece) {
  for (int32_t q = 0; q < op.size; ++q) {
    int64_t found = first_bad(piece.srcs[q], piece.count, op.coll.dtype);
    if (found < 0) continue;
    return note_bad(op.coll, q, op.coll.base + piece.at + found);
  }
}

// Adds the squares of what of the piece this rank sums for all.
Range add_norm(const CollOp& op, const Piece& piece, const std::byte* sum) {
  const int64_t own = op.part_begin(op.me);
  const int64_t from = std::max(own, piece.at);
  const int64_t to =
      std::min(own + op.part_count(op.me), piece.at + piece.count);
  if (from >= to) return {};
  kernels::norm_cpu({op.coll.norm, sum + (from - piece.at) * op.out_size,
                     to - from, op.coll.out_dtype, 0, op.coll.base + from});
  return {from, to};
}

void inspect(const CollOp& op, const Piece& piece, const std::byte* sum) {
  Range counted;
  const int64_t before = op.coll.norm == nullptr ? 0 : op.coll.norm->nonfinite;
  if (op.coll.norm != nullptr) counted = add_norm(op, piece, sum);
  if (op.coll.bad == nullptr) return;
  const bool bad = counted.end - counted.begin == piece.count
                       ? op.coll.norm->nonfinite != before
                       : first_bad(sum, piece.count, op.coll.out_dtype) >= 0;
  if (bad) find_bad(op, piece);
}

void form(const CollOp& op, const kernels::ReduceArgs& args) {
  if (!op.coll.factor.has_value()) return kernels::reduce_cpu(args);
  double factors[kMaxRanks];
  for (int32_t q = 0; q < op.size; ++q) {
    factors[q] = q == op.me ? *op.coll.factor : op.slot(q).factor;
  }
  kernels::premul_cpu(
      {args.dst, args.srcs, factors, args.n, args.count, args.in, 0});
}

// Writes a piece of the result, which is in the first cache, to the peers.
// A group that failed is noticed by the operation's next step.
void push_piece(CollOp& op, const Piece& piece, const std::byte* sum,
                bool cold) {
  const std::atomic<uint32_t>& closed = op.core.control.poison().once.word();
  for (int32_t i = 1; i < op.size; ++i) {
    const int32_t q = (op.me + i) % op.size;
    std::byte* to = op.result[q] + piece.at * op.out_size;
    const int64_t bytes = piece.count * op.out_size;
    if (to == sum) continue;  // memory that ranks have in common
    if (!fenced_copy(closed, {to, sum, bytes, cold})) return;
    op.counts.bytes_written += bytes;
  }
}

// A piece at a time: sums of which more is to be known, or that bypass the
// caches, are formed beside their place, which may hold a source.
void reduce_pieces(CollOp& op, kernels::ReduceArgs args, int64_t at,
                   bool cold) {
  alignas(64) std::byte buffer[kPiece];
  const int64_t most = kPiece / std::max(op.in_size, op.out_size);
  const int64_t count = args.count;
  const bool inspects = op.coll.bad != nullptr || op.coll.norm != nullptr;
  const bool beside = args.add == 0 && (cold || inspects);
  std::byte* to = static_cast<std::byte*>(args.dst);
  const void* const* srcs = args.srcs;
  Piece piece;
  args.srcs = piece.srcs;
  for (int64_t done = 0; done < count; done += args.count) {
    args.count = std::min(most, count - done);
    for (int32_t q = 0; q < op.size; ++q) {
      piece.srcs[q] =
          static_cast<const std::byte*>(srcs[q]) + done * op.in_size;
    }
    piece.at = at + done;
    piece.count = args.count;
    std::byte* place = to + done * op.out_size;
    args.dst = beside ? buffer : place;
    form(op, args);
    const std::byte* sum = static_cast<std::byte*>(args.dst);
    inspect(op, piece, sum);
    if (op.pushes) push_piece(op, piece, sum, cold);
    if (!beside) continue;
    kernels::CopyArgs copy{place, buffer, args.count * op.out_size};
    cold ? kernels::copy_cold_cpu(copy) : kernels::copy_cpu(copy);
  }
  if (cold) kernels::flush_cold_cpu();
}

}  // namespace

Step copy_from(CollOp& op, int32_t q, Location Slot::*which, int64_t offset,
               std::byte* to, int64_t bytes) {
  const std::byte* from = op.base[q];
  int64_t n = std::min(bytes - op.pos, from != nullptr ? kBlock : kCallBlock);
  if (n > 0 && from != nullptr) {
    kernels::CopyArgs copy{to + op.pos, from + offset + op.pos, n};
    // In place, the other ranks read it in the next sum.
    if (bypasses(op, bytes) || (op.streams_dst && op.dst() == op.src())) {
      kernels::copy_cold_cpu(copy);
      kernels::flush_cold_cpu();
    } else {
      kernels::copy_cpu(copy);
    }
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
  // What is overwritten is in the caches already, unless peers have it.
  const bool cold =
      args.add == 0 &&
      (op.streams_dst ||
       (bypasses(op, op.part_count(op.me) * op.out_size) && srcs[op.me] != to));
  if (cold || op.pushes || op.coll.bad != nullptr || op.coll.norm != nullptr) {
    reduce_pieces(op, args, at, cold);
  } else {
    form(op, args);
  }
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
