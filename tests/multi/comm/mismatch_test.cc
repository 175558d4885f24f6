// Calls that do not fit together, and calls that make no sense.
#include <boost/test/unit_test.hpp>
#include <vector>

#include "support/ranks.h"

namespace aliquot::test {
namespace {

Coll coll_of(CollKind kind, int64_t count, const float* src, float* dst,
             int32_t root) {
  Coll coll;
  coll.kind = kind;
  coll.dtype = ALQ_F32;
  coll.count = count;
  coll.src = src;
  coll.dst = dst;
  coll.root = root;
  return coll;
}

// Two ranks that do not agree; both sides are named on every rank.
void mismatch(Rank& rank, const Coll& common, const Coll& odd,
              const std::string& a, const std::string& b) {
  const Coll& coll = rank.rank == 2 ? odd : common;
  Status status = rank.group->issue(coll, nullptr, nullptr);
  rank.check(status.code() == ALQ_RANK_MISMATCH,
             fmt::format("code {} {}", status.code(), status.message()));
  rank.check(status.rank() == 2, "names rank 2");
  for (const std::string& part :
       {a, b, std::string("rank 2"), std::string("rank 0")}) {
    rank.check(status.message().find(part) != std::string::npos,
               fmt::format("\"{}\" is not in: {}", part, status.message()));
  }
}

BOOST_AUTO_TEST_CASE(mismatches_name_both_sides) {
  float src[300] = {}, dst[300] = {};
  Coll sum = coll_of(CollKind::kAllReduce, 50, src, dst, 0);
  Coll gather = coll_of(CollKind::kAllGather, 50, src, dst, 0);
  Coll cast = coll_of(CollKind::kBroadcast, 50, src, src, 0);
  Coll fewer = sum, ints = sum, least = sum, other_root = cast, sealed = gather;
  fewer.count = 49;
  ints.dtype = ALQ_I32;
  least.op = ALQ_MIN;
  other_root.root = 1;
  int64_t counts[] = {50, 49, 51};
  sealed.counts = counts;
  struct Case {
    Coll common, odd;
    const char *a, *b;
  };
  const Case cases[] = {
      {sum, gather, "all_reduce(50 x f32, sum)", "all_gather(50 x f32)"},
      {sum, fewer, "50 x f32", "49 x f32"},
      {sum, ints, "50 x f32", "50 x i32"},
      {sum, least, "sum", "min"},
      {cast, other_root, "root 0", "root 1"},
      {gather, sealed, "all_gather(50", "all_gather(150"},
  };
  for (RankKind kind : kinds()) {
    for (const Case& c : cases) {
      auto result = run_ranks(options(3, kind), [&](Rank& rank) {
        // Own memory for each thread.
        float from[300] = {}, to[300] = {};
        auto own = [&](Coll coll) {
          bool in_place = coll.src == coll.dst;
          coll.src = from;
          coll.dst = in_place ? from : to;
          return coll;
        };
        mismatch(rank, own(c.common), own(c.odd), c.a, c.b);
      });
      BOOST_TEST(result.ok(), c.a << " / " << c.b << ": " << result.text());
    }
  }
}

BOOST_AUTO_TEST_CASE(a_send_and_recv_that_differ_fail_on_both_sides) {
  auto result = run_ranks(options(2, RankKind::kProcesses), [](Rank& rank) {
    float x[100] = {};
    bool sends = rank.rank == 0;
    Coll coll = coll_of(sends ? CollKind::kSend : CollKind::kRecv,
                        sends ? 100 : 99, x, x, 1 - rank.rank);
    Status status = rank.group->issue(coll, nullptr, nullptr);
    rank.check(status.code() == ALQ_RANK_MISMATCH, status.message());
    rank.check(status.message().find("100 x f32") != std::string::npos &&
                   status.message().find("99 x f32") != std::string::npos,
               status.message());
  });
  BOOST_TEST(result.ok(), result.text());
}

BOOST_AUTO_TEST_CASE(bad_calls_are_refused_before_anyone_is_told) {
  auto result = run_ranks(options(2, RankKind::kThreads), [](Rank& rank) {
    float x[64] = {}, y[64] = {};
    Coll good = coll_of(CollKind::kAllReduce, 8, x, y, 0);
    std::vector<Coll> bad(14, good);
    size_t n = 0;
    bad[n++].count = -1;
    bad[n++].dtype = 99;
    bad[n++].dtype = ALQ_BOOL;
    bad[n++].dtype = ALQ_F8E4M3;
    bad[n++].op = 9;
    bad[n].dtype = ALQ_I32, bad[n++].op = ALQ_AVG;
    bad[n++].src = nullptr;
    bad[n++].dst = nullptr;
    bad[n++].dst = x + 1;  // overlaps
    bad[n++].count = INT64_MAX;
    bad[n++].accumulate = true;
    bad[n++].kind = static_cast<CollKind>(42);
    bad[n].kind = CollKind::kBroadcast, bad[n++].root = 2;
    bad[n].kind = CollKind::kSend, bad[n++].root = rank.rank;
    for (size_t i = 0; i < n; ++i) {
      Status status = rank.group->issue(bad[i], nullptr, nullptr);
      rank.check(status.code() == ALQ_INVALID_ARGUMENT,
                 fmt::format("bad call {}: {} {}", i, status.code(),
                             status.message()));
      rank.check(status.message().find("world") != std::string::npos,
                 "names the group: " + status.message());
    }
    rank.check_ok(rank.group->issue(good, nullptr, nullptr), "still well");
  });
  BOOST_TEST(result.ok(), result.text());
}

}  // namespace
}  // namespace aliquot::test
