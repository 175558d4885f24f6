// Reduce, gather, scatter and all-to-all-v against a sequential reference, bit
// for bit, on threads, processes and both mixed.
#include <boost/test/unit_test.hpp>

#include "multi/comm/cases.h"

namespace aliquot::test {
namespace {

void reduce(Rank& rank, const Case& c, int32_t root) {
  Dtype out = c.out == 0 ? c.dtype : c.out;
  bool is_root = rank.rank == root;
  auto all = all_filled(rank, c, c.count);
  Bytes src(rank, c.where, c.count * dtype_size(c.dtype));
  Bytes dst(rank, c.where,
            c.in_place || !is_root ? 0 : c.count * dtype_size(out));
  src.set(all[static_cast<size_t>(rank.rank)]);
  Coll coll = coll_of(CollKind::kReduce, c);
  coll.root = root;
  coll.src = src.data();
  coll.dst = c.in_place && is_root ? src.data() : dst.data();
  rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "reduce");
  if (is_root) {
    check_bits(rank, static_cast<std::byte*>(coll.dst),
               reduced(all, c.dtype, out, c.op), "reduce", c);
  } else {
    check_bits(rank, src.data(), all[static_cast<size_t>(rank.rank)],
               "reduce leaves src alone", c);
  }
}

void gather(Rank& rank, const Case& c, int32_t root) {
  int64_t size = dtype_size(c.dtype), own = count_of(c, rank.rank);
  bool is_root = rank.rank == root, in_place = c.in_place && is_root;
  Bytes dst(rank, c.where, is_root ? begin_of(c, rank.size) * size : 0);
  Bytes src(rank, c.where, in_place ? 0 : own * size);
  std::byte* from =
      in_place ? dst.data() + begin_of(c, rank.rank) * size : src.data();
  Buffer mine = filled(c.dtype, own, rank.rank, c.count);
  if (!mine.empty()) std::memcpy(from, mine.data(), mine.size());
  Coll coll = coll_of(CollKind::kGather, c);
  coll.root = root;
  coll.src = from;
  coll.dst = dst.data();
  rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "gather");
  if (!is_root) return;
  Buffer want;
  for (int32_t q = 0; q < rank.size; ++q) {
    Buffer part = filled(c.dtype, count_of(c, q), q, c.count);
    want.insert(want.end(), part.begin(), part.end());
  }
  check_bits(rank, dst.data(), want, "gather", c);
}

void scatter(Rank& rank, const Case& c, int32_t root) {
  int64_t size = dtype_size(c.dtype), own = count_of(c, rank.rank);
  int64_t begin = begin_of(c, rank.rank), total = begin_of(c, rank.size);
  bool is_root = rank.rank == root, in_place = c.in_place && is_root;
  Bytes src(rank, c.where, is_root ? total * size : 0);
  Bytes dst(rank, c.where, in_place ? 0 : own * size);
  Buffer all = filled(c.dtype, total, root, 7);
  if (is_root) src.set(all);
  Coll coll = coll_of(CollKind::kScatter, c);
  coll.root = root;
  coll.src = src.data();
  coll.dst = in_place ? src.data() + begin * size : dst.data();
  rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "scatter");
  check_bits(rank, static_cast<std::byte*>(coll.dst),
             slice(all, c.dtype, begin, own), "scatter", c);
}

// Elements from q to r: some none, some many.
int64_t pair_count(int32_t q, int32_t r, int64_t scale) {
  return (q + 2 * r) % 3 == 1 ? 0 : (q * 3 + r * 5 + 1) * scale;
}

void all_to_all_v(Rank& rank, Dtype dtype, Where where, int64_t scale) {
  Case c{dtype, scale, false, where};
  std::vector<int64_t> send, recv;
  int64_t sent = 0, received = 0, size = dtype_size(dtype);
  for (int32_t q = 0; q < rank.size; ++q) {
    send.push_back(pair_count(rank.rank, q, scale));
    recv.push_back(pair_count(q, rank.rank, scale));
    sent += send.back();
    received += recv.back();
  }
  Bytes src(rank, where, sent * size), dst(rank, where, received * size);
  src.set(filled(dtype, sent, rank.rank, 3));
  Coll coll = coll_of(CollKind::kAllToAllV, c);
  coll.counts = send;
  coll.recv_counts = recv;
  coll.src = src.data();
  coll.dst = dst.data();
  rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "all_to_all_v");
  Buffer want;
  for (int32_t q = 0; q < rank.size; ++q) {
    int64_t total = 0, begin = 0;
    for (int32_t r = 0; r < rank.size; ++r) {
      if (r == rank.rank) begin = total;
      total += pair_count(q, r, scale);
    }
    Buffer part = slice(filled(dtype, total, q, 3), dtype, begin,
                        recv[static_cast<size_t>(q)]);
    want.insert(want.end(), part.begin(), part.end());
  }
  check_bits(rank, dst.data(), want, "all_to_all_v", c);
}

void run_all(Rank& rank, Case c) {
  for (int32_t root : {0, rank.size - 1}) {
    reduce(rank, c, root);
    gather(rank, c, root);
    scatter(rank, c, root);
    Case uneven = c;
    for (int32_t q = 0; q < rank.size; ++q) {
      uneven.counts.push_back(q % 3 == 1 ? 0 : c.count + q);
    }
    gather(rank, uneven, root);
    scatter(rank, uneven, root);
  }
  all_to_all_v(rank, c.dtype, c.where, c.count);
}

void sweep(Rank& rank) {
  for (int64_t count : {0, 1, 17, 1024, 1027, 20'011}) {
    for (bool in_place : {false, true}) {
      for (Where where : {Where::kPrivate, Where::kShared}) {
        run_all(rank, {ALQ_F32, count, in_place, where});
      }
    }
  }
}

void dtypes(Rank& rank) {
  for (Dtype dtype = ALQ_F64; dtype <= ALQ_F8E5M2; ++dtype) {
    Case c{dtype, 3001};
    gather(rank, c, 1);
    scatter(rank, c, 1);
    all_to_all_v(rank, dtype, Where::kPrivate, 301);
    if (!is_float(dtype) && !is_integer(dtype)) continue;
    for (alq_reduce_op op : {ALQ_SUM, ALQ_AVG, ALQ_MIN, ALQ_MAX}) {
      if (op == ALQ_AVG && !is_float(dtype)) continue;
      c.op = op;
      reduce(rank, c, 1);
    }
    c.op = ALQ_SUM;
    if (is_float(dtype) && dtype_size(dtype) == 2) {
      c.out = ALQ_F32;
      reduce(rank, c, 0);
    }
  }
}

void large(Rank& rank) {
  for (Where where : {Where::kPrivate, Where::kShared}) {
    Case c{ALQ_F32, kThreadSanitizer ? 20'003 : 400'003, false, where};
    run_all(rank, c);
  }
}

// The thread sanitizer takes minutes for 8 ranks on 2 cores.
BOOST_AUTO_TEST_CASE(rooted_sizes_places_and_memory) {
  everywhere(kThreadSanitizer ? std::vector<int32_t>{2}
                              : std::vector<int32_t>{1, 3, 8},
             sweep);
}

BOOST_AUTO_TEST_CASE(rooted_threads_in_processes) {
  everywhere({3}, sweep, {RankKind::kMixed});
}

BOOST_AUTO_TEST_CASE(rooted_all_dtypes_and_ops) { everywhere({2, 3}, dtypes); }

BOOST_AUTO_TEST_CASE(rooted_several_mib) { everywhere({2, 3}, large); }

BOOST_AUTO_TEST_CASE(rooted_staged_where_reading_is_not_allowed) {
  RanksOptions staged = options(3, RankKind::kProcesses);
  staged.cma = false;
  auto result = run_ranks(staged, [](Rank& rank) {
    if (!kThreadSanitizer) sweep(rank);
    large(rank);
  });
  BOOST_TEST(result.ok(), result.text());
}

// The pair that disagrees is named on every rank.
BOOST_AUTO_TEST_CASE(pairs_that_disagree_are_named) {
  for (RankKind kind : kinds()) {
    auto result = run_ranks(options(3, kind), [](Rank& rank) {
      float src[64] = {}, dst[64] = {};
      std::vector<int64_t> send = {4, 4, 4}, recv = {4, 4, 4};
      if (rank.rank == 1) send[2] = 5;  // rank 2 expects 4
      Coll coll;
      coll.kind = CollKind::kAllToAllV;
      coll.dtype = ALQ_F32;
      coll.counts = send;
      coll.recv_counts = recv;
      coll.src = src;
      coll.dst = dst;
      Status status = rank.group->issue(coll, nullptr, nullptr);
      if (status.ok()) {  // its own pairs agree: it learns with the next call
        status = rank.group->issue(Coll{}, nullptr, nullptr);
      }
      rank.check(status.message().find("rank 1 sends 5 elements to rank 2, "
                                       "which expects 4") != std::string::npos,
                 status.message());
      rank.check(status.rank() == 1, "names rank 1");
    });
    BOOST_TEST(result.ok(), result.text());
  }
}

// What each costs, to the byte.
BOOST_AUTO_TEST_CASE(rooted_counts_equal_the_formulas) {
  auto body = [](Rank& rank) {
    const int64_t p = rank.size, count = 64 * 1024, part = count * 4;
    auto a = std::move(*rank.device->allocate(part * p, "a"));
    auto b = std::move(*rank.device->allocate(part * p, "b"));
    const bool root = rank.rank == 1;
    auto expect = [&](Coll coll, int64_t read, int64_t written, int64_t peer) {
      coll.dtype = ALQ_F32;
      coll.root = 1;
      coll.src = a->data();
      coll.dst = b->data();
      GroupStats before = rank.group->stats();
      rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "issue");
      GroupStats after = rank.group->stats();
      rank.check(after.bytes_read - before.bytes_read == read &&
                     after.bytes_written - before.bytes_written == written &&
                     after.peer_bytes_read - before.peer_bytes_read == peer,
                 fmt::format("{}: read {} written {} of peers {}",
                             coll_name(coll.kind),
                             after.bytes_read - before.bytes_read,
                             after.bytes_written - before.bytes_written,
                             after.peer_bytes_read - before.peer_bytes_read));
    };
    Coll coll;
    coll.count = count;
    coll.kind = CollKind::kReduce;
    expect(coll, root ? p * part : 0, root ? part : 0,
           root ? (p - 1) * part : 0);
    coll.kind = CollKind::kGather;
    expect(coll, root ? p * part : 0, root ? p * part : 0,
           root ? (p - 1) * part : 0);
    coll.kind = CollKind::kScatter;
    expect(coll, part, part, root ? 0 : part);
    coll.kind = CollKind::kAllToAllV;
    std::vector<int64_t> counts(static_cast<size_t>(p), count);
    coll.counts = coll.recv_counts = counts;
    expect(coll, p * part, p * part, (p - 1) * part);
  };
  for (RankKind kind : kinds()) {
    for (int32_t size : {2, 4}) {
      auto result = run_ranks(options(size, kind), body);
      BOOST_TEST(result.ok(), result.text());
    }
  }
}

}  // namespace
}  // namespace aliquot::test
