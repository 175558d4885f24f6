// Every collective on threads, processes and both mixed, against a sequential
// reference, bit for bit.
#include <boost/test/unit_test.hpp>

#include "multi/comm/cases.h"

namespace aliquot::test {
namespace {

void all_reduce(Rank& rank, const Case& c) {
  Dtype out = c.out == 0 ? c.dtype : c.out;
  auto all = all_filled(rank, c, c.count);
  Bytes src(rank, c.where, c.count * dtype_size(c.dtype));
  Bytes dst(rank, c.where, c.in_place ? 0 : c.count * dtype_size(out));
  src.set(all[static_cast<size_t>(rank.rank)]);
  Coll coll = coll_of(CollKind::kAllReduce, c);
  coll.src = src.data();
  coll.dst = c.in_place ? src.data() : dst.data();
  rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "all_reduce");
  check_bits(rank, static_cast<std::byte*>(coll.dst),
             reduced(all, c.dtype, out, c.op), "all_reduce", c);
}

void reduce_scatter(Rank& rank, const Case& c) {
  Dtype out = c.out == 0 ? c.dtype : c.out;
  int64_t total = begin_of(c, rank.size), own = count_of(c, rank.rank);
  int64_t begin = begin_of(c, rank.rank);
  auto all = all_filled(rank, c, total);
  Bytes src(rank, c.where, total * dtype_size(c.dtype));
  Bytes dst(rank, c.where, c.in_place ? 0 : own * dtype_size(out));
  src.set(all[static_cast<size_t>(rank.rank)]);
  Coll coll = coll_of(CollKind::kReduceScatter, c);
  coll.src = src.data();
  coll.dst = c.in_place ? src.data() + begin * dtype_size(c.dtype) : dst.data();
  Buffer onto = filled(out, own, rank.rank, 99);
  if (c.accumulate) dst.set(onto);
  rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "reduce_scatter");
  for (Buffer& b : all) b = slice(b, c.dtype, begin, own);
  check_bits(rank, static_cast<std::byte*>(coll.dst),
             reduced(all, c.dtype, out, c.op, c.accumulate ? &onto : nullptr),
             "reduce_scatter", c);
}

void all_gather(Rank& rank, const Case& c) {
  int64_t total = begin_of(c, rank.size), own = count_of(c, rank.rank);
  int64_t size = dtype_size(c.dtype);
  Bytes dst(rank, c.where, total * size);
  Bytes src(rank, c.where, c.in_place ? 0 : own * size);
  Coll coll = coll_of(CollKind::kAllGather, c);
  coll.dst = dst.data();
  std::byte* from =
      c.in_place ? dst.data() + begin_of(c, rank.rank) * size : src.data();
  coll.src = from;
  Buffer mine = filled(c.dtype, own, rank.rank, c.count);
  if (!mine.empty()) std::memcpy(from, mine.data(), mine.size());
  rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "all_gather");
  Buffer want;
  for (int32_t q = 0; q < rank.size; ++q) {
    Buffer part = filled(c.dtype, count_of(c, q), q, c.count);
    want.insert(want.end(), part.begin(), part.end());
  }
  check_bits(rank, dst.data(), want, "all_gather", c);
}

void broadcast(Rank& rank, const Case& c) {
  int32_t root = static_cast<int32_t>(c.count) % rank.size;
  Bytes buf(rank, c.where, c.count * dtype_size(c.dtype));
  if (rank.rank == root) buf.set(filled(c.dtype, c.count, root, 5));
  Coll coll = coll_of(CollKind::kBroadcast, c);
  coll.op = ALQ_SUM;
  coll.src = coll.dst = buf.data();
  coll.root = root;
  rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "broadcast");
  check_bits(rank, buf.data(), filled(c.dtype, c.count, root, 5), "broadcast",
             c);
}

void all_to_all(Rank& rank, const Case& c) {
  int64_t size = dtype_size(c.dtype), total = c.count * rank.size;
  Bytes src(rank, c.where, total * size), dst(rank, c.where, total * size);
  src.set(filled(c.dtype, total, rank.rank, 3));
  Coll coll = coll_of(CollKind::kAllToAll, c);
  coll.src = src.data();
  coll.dst = dst.data();
  rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "all_to_all");
  Buffer want;
  for (int32_t q = 0; q < rank.size; ++q) {
    Buffer part = slice(filled(c.dtype, total, q, 3), c.dtype,
                        rank.rank * c.count, c.count);
    want.insert(want.end(), part.begin(), part.end());
  }
  check_bits(rank, dst.data(), want, "all_to_all", c);
}

// A ring of messages: everyone sends to the next and receives from the last.
void send_recv(Rank& rank, const Case& c) {
  if (rank.size == 1) return;
  int64_t bytes = c.count * dtype_size(c.dtype);
  Bytes src(rank, c.where, bytes), dst(rank, c.where, bytes);
  src.set(filled(c.dtype, c.count, rank.rank, 11));
  int32_t next = (rank.rank + 1) % rank.size;
  int32_t last = (rank.rank + rank.size - 1) % rank.size;
  Coll send = coll_of(CollKind::kSend, c), recv = coll_of(CollKind::kRecv, c);
  send.src = src.data();
  send.root = next;
  recv.dst = dst.data();
  recv.root = last;
  const Coll* order[] = {&send, &recv};
  if (rank.rank == 0) std::swap(order[0], order[1]);
  for (const Coll* coll : order) {
    rank.check_ok(rank.group->issue(*coll, nullptr, nullptr), "send/recv");
  }
  check_bits(rank, dst.data(), filled(c.dtype, c.count, last, 11), "recv", c);
}

void run_all(Rank& rank, const Case& c, bool reductions) {
  if (reductions) {
    all_reduce(rank, c);
    reduce_scatter(rank, c);
  }
  if (c.op != ALQ_SUM) return;
  all_gather(rank, c);
  if (c.in_place) return;
  broadcast(rank, c);
  all_to_all(rank, c);
  send_recv(rank, c);
}

// 0, 1, odd, at and around the inline limit, several blocks.
const int64_t kCounts[] = {0, 1, 17, 1024, 1027, 20'011};

void sweep(Rank& rank) {
  for (int64_t count : kCounts) {
    for (bool in_place : {false, true}) {
      for (Where where : {Where::kPrivate, Where::kShared}) {
        run_all(rank, {ALQ_F32, count, in_place, where}, true);
      }
    }
  }
  Coll barrier;
  rank.check_ok(rank.group->issue(barrier, nullptr, nullptr), "barrier");
}

void dtypes(Rank& rank) {
  for (Dtype dtype = ALQ_F64; dtype <= ALQ_F8E5M2; ++dtype) {
    bool reductions = is_float(dtype) || is_integer(dtype);
    for (int64_t count : {33, 3001}) {
      for (alq_reduce_op op : {ALQ_SUM, ALQ_AVG, ALQ_MIN, ALQ_MAX}) {
        if (op == ALQ_AVG && !is_float(dtype)) continue;
        Case c{dtype, count};
        c.op = op;
        run_all(rank, c, reductions);
      }
    }
  }
}

void half_sums(Rank& rank) {
  for (Dtype dtype : {ALQ_F16, ALQ_BF16, ALQ_F32}) {
    for (int64_t count : {100, 5000}) {
      Case c{dtype, count};
      c.out = ALQ_F32;
      all_reduce(rank, c);
      c.accumulate = true;
      reduce_scatter(rank, c);
      c.op = ALQ_AVG;
      reduce_scatter(rank, c);
    }
  }
}

void uneven(Rank& rank) {
  for (int64_t scale : {1, 700, 9'000}) {
    for (bool in_place : {false, true}) {
      for (Where where : {Where::kPrivate, Where::kShared}) {
        Case c{ALQ_F32, 0, in_place, where};
        for (int32_t q = 0; q < rank.size; ++q) {
          // Some ranks contribute nothing.
          c.counts.push_back(q % 3 == 1 ? 0 : (q * 5 + 3) * scale);
        }
        all_gather(rank, c);
        reduce_scatter(rank, c);
      }
    }
  }
}

void large(Rank& rank) {
  for (Where where : {Where::kPrivate, Where::kShared}) {
    Case c{ALQ_F32, 1'500'001, false, where};
    all_reduce(rank, c);
    c.count = 400'003;
    all_gather(rank, c);
    reduce_scatter(rank, c);
    all_to_all(rank, c);
    broadcast(rank, c);
    send_recv(rank, c);
  }
}

BOOST_AUTO_TEST_CASE(sizes_places_and_memory) {
  everywhere({1, 2, 3, 4, 8}, sweep);
}

BOOST_AUTO_TEST_CASE(threads_in_processes) {
  everywhere({3, 4}, sweep, {RankKind::kMixed});
}

BOOST_AUTO_TEST_CASE(all_dtypes_and_ops) { everywhere({2, 3}, dtypes); }

BOOST_AUTO_TEST_CASE(half_types_are_summed_in_f32) {
  everywhere({1, 2, 3}, half_sums);
}

BOOST_AUTO_TEST_CASE(uneven_and_empty_parts) {
  everywhere({1, 2, 3, 4}, uneven);
}

BOOST_AUTO_TEST_CASE(several_mib) { everywhere({2, 3}, large); }

// Without process_vm_readv private memory goes through staging windows,
// whatever its size.
BOOST_AUTO_TEST_CASE(staged_where_reading_is_not_allowed) {
  RanksOptions staged = options(3, RankKind::kProcesses);
  staged.cma = false;
  auto result = run_ranks(staged, [](Rank& rank) {
    large(rank);
    uneven(rank);
    half_sums(rank);
  });
  BOOST_TEST(result.ok(), result.text());
}

}  // namespace
}  // namespace aliquot::test
