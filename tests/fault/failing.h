// What tests of failing ranks share: calls, and what survivors must see.
#pragma once

#include <boost/test/unit_test.hpp>
#include <vector>

#include "support/ranks.h"

namespace aliquot::test {

constexpr int64_t kMs = 1'000'000;
// The thread sanitizer delays every exit by a second.
constexpr int64_t kPromptMs = kThreadSanitizer ? 3000 : 1000;

inline Deadline in_ms(int64_t ms) { return Deadline::after(ms * kMs); }

inline Coll coll_of(CollKind kind, int64_t count, const float* src, float* dst,
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

constexpr CollKind kKinds[] = {CollKind::kAllReduce,     CollKind::kAllGather,
                               CollKind::kReduceScatter, CollKind::kBroadcast,
                               CollKind::kAllToAll,      CollKind::kBarrier,
                               CollKind::kGather,        CollKind::kScatter,
                               CollKind::kReduce,        CollKind::kAllToAllV};

// A survivor: its first failing call names the culprit, in time; the next one
// says the group is poisoned and repeats the cause.
inline void expect_failure(Rank& rank, Group& group, const Status& status,
                           int32_t culprit, alq_status code, int64_t start,
                           int64_t limit_ms) {
  int64_t ms = (now_ns() - start) / kMs;
  rank.check(status.code() == code,
             fmt::format("code {} ({}), expected {}", status.code(),
                         status.message(), code));
  rank.check(status.rank() == culprit,
             fmt::format("names rank {}: {}", status.rank(), status.message()));
  std::string name = fmt::format("rank {}", culprit);
  std::string names = fmt::format("rank(s) {}", culprit);
  rank.check(status.message().find(name) != std::string::npos ||
                 status.message().find(names) != std::string::npos,
             "message without the rank: " + status.message());
  rank.check(ms < limit_ms, fmt::format("took {} ms", ms));
  Status later = group.issue(Coll{}, nullptr, nullptr);
  rank.check(later.code() == ALQ_GROUP_POISONED, "later calls are refused");
  rank.check(later.message().find(status.message()) != std::string::npos,
             "later calls repeat the cause");
  rank.check(later.rank() == culprit, "later calls name the culprit");
  rank.check(group.status().message() == status.message(), "group status");
}

// The victim may die so early that the join of others already fails by name.
inline bool has_group(Rank& rank) {
  if (rank.group != nullptr) return true;
  rank.check(rank.joined.rank() == 1, "join: " + rank.joined.message());
  return false;
}

// Calls `kind` until it fails; rank 1 has a fault armed in the second call.
inline void until_failure(Rank& rank, CollKind kind, int64_t count,
                          alq_status code = ALQ_PEER_FAILED) {
  if (!has_group(rank)) return;
  std::vector<float> src(static_cast<size_t>(count * rank.size), 1);
  std::vector<float> dst(static_cast<size_t>(count * rank.size));
  const std::vector<int64_t> counts(static_cast<size_t>(rank.size), count);
  int64_t start = now_ns();
  Status status;
  for (int i = 0; i < 50 && status.ok(); ++i) {
    Coll coll = coll_of(kind, count, src.data(), dst.data(), 0);
    if (kind == CollKind::kAllToAllV) coll.counts = coll.recv_counts = counts;
    start = now_ns();
    status = rank.group->issue(coll, nullptr, nullptr);
  }
  expect_failure(rank, *rank.group, status, 1, code, start, kPromptMs);
}

inline void check_survivors(const RanksResult& result, int32_t culprit,
                            const std::string& what) {
  BOOST_TEST(!result.timed_out, what);
  BOOST_TEST(result.left_children == 0, what);
  for (size_t q = 0; q < result.ranks.size(); ++q) {
    const RankOutcome& rank = result.ranks[q];
    if (static_cast<int32_t>(q) == culprit) {
      BOOST_TEST(!rank.finished, what);
      continue;
    }
    BOOST_TEST(rank.finished, what << ": rank " << q);
    BOOST_TEST(rank.failures.empty(), what << ": " << rank.failures);
  }
}

}  // namespace aliquot::test
