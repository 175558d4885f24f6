// What was freed leaves the address spaces of all ranks.
#include <boost/test/unit_test.hpp>
#include <numeric>
#include <vector>

#include "support/ranks.h"

namespace aliquot::test {
namespace {

Coll all_reduce(const std::byte* src, std::byte* dst, int64_t count) {
  Coll coll;
  coll.kind = CollKind::kAllReduce;
  coll.src = src;
  coll.dst = dst;
  coll.count = count;
  coll.dtype = ALQ_F32;
  return coll;
}

// Integers below 2^24: sums are exact whatever the order.
float value(int32_t rank, int op) {
  return static_cast<float>(rank * 100 + op);
}

float sum_of(int32_t size, int op) {
  float sum = 0;
  for (int32_t q = 0; q < size; ++q) sum += value(q, op);
  return sum;
}

void meet(Rank& rank) {
  rank.check_ok(rank.group->issue(Coll{}, nullptr, nullptr), "barrier");
}

// Sums into dst, which holds what was asked for; the result of one op.
void sum_into(Rank& rank, std::byte* src, std::byte* dst, int64_t count,
              int op) {
  auto* own = reinterpret_cast<float*>(src);
  std::fill_n(own, count, value(rank.rank, op));
  rank.check_ok(
      rank.group->issue(all_reduce(src, dst, count), nullptr, nullptr), "sum");
  const auto* sums = reinterpret_cast<const float*>(dst);
  rank.check(sums[0] == sum_of(rank.size, op) &&
                 sums[count - 1] == sum_of(rank.size, op),
             "sum");
}

// Buffers freed by one rank are unmapped by the others.
void own_memory(Rank& rank) {
  int64_t mapped = 0;
  for (int i = 0; i < 100; ++i) {
    auto memory = rank.device->allocate(16384, "short-lived");
    rank.check_ok(memory.status(), "allocate");
    sum_into(rank, (*memory)->data(), (*memory)->data(), 4096, i);
    if (i == 10) mapped = memfd_mappings();
  }
  rank.check(memfd_mappings() <= mapped + 2 * rank.size,
             fmt::format("{} mappings after 100 buffers, {} after 10",
                         memfd_mappings(), mapped));
}

// `many` common memories at once, made by one rank, used by all and freed, in
// rounds: as many mappings after the last as after the first.
void common_memory(Rank& rank, int many) {
  constexpr int kRounds = 6;
  constexpr int64_t kCount = 4096, kBytes = kCount * 4;
  auto own = rank.device->allocate(kBytes, "own");
  rank.check_ok(own.status(), "allocate");
  int64_t mapped = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::unique_ptr<Memory>> live;
    for (int i = 0; i < many; ++i) {
      auto made = rank.group->allocate_common(rank.size * kBytes, "common",
                                              Deadline::after(10'000'000'000));
      rank.check_ok(made.status(), "common");
      live.push_back(std::move(*made));
      std::byte* data = live.back()->data();
      sum_into(rank, (*own)->data(), data + rank.rank * kBytes, kCount, i);
      // Ranks other than its maker announce it, to the maker as well.
      auto* part = reinterpret_cast<float*>(data + rank.rank * kBytes);
      sum_into(rank, reinterpret_cast<std::byte*>(part), (*own)->data(), kCount,
               i + 1);
      meet(rank);
    }
    live.clear();
    meet(rank);
    // What was freed is looked for when an operation on mapped memory ends.
    for (int i = 0; i < 2; ++i) {
      sum_into(rank, (*own)->data(), (*own)->data(), kCount, i);
      meet(rank);
    }
    if (round == 0) mapped = memfd_mappings();
  }
  rank.check(memfd_mappings() <= mapped + rank.size,
             fmt::format("{} mappings after {} rounds of {}, {} after one",
                         memfd_mappings(), kRounds, many, mapped));
  meet(rank);
}

BOOST_AUTO_TEST_CASE(peers_unmap_what_was_freed) {
  auto result = run_ranks(options(3, RankKind::kProcesses), own_memory);
  BOOST_TEST(result.ok(), result.text());
}

// 40 at once are more than a rank tells its peers one by one.
BOOST_AUTO_TEST_CASE(common_memory_goes_with_its_users) {
  for (RankKind kind : {RankKind::kProcesses, RankKind::kMixed}) {
    if (kThreadSanitizer) continue;
    for (int many : {8, 40}) {
      auto result = run_ranks(options(4, kind),
                              [many](Rank& r) { common_memory(r, many); });
      BOOST_TEST(result.ok(), kind_name(kind)
                                  << " " << many << ": " << result.text());
    }
  }
}

}  // namespace
}  // namespace aliquot::test
