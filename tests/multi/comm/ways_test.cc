// Which way private memory goes: what a world measures, what hints say, and
// trials.
#include <boost/test/unit_test.hpp>

#include "comm/mem/calibrate.h"
#include "multi/comm/cases.h"

namespace aliquot::test {
namespace {

// Every rank of the world, and of a group without rank 0, sees the same.
BOOST_AUTO_TEST_CASE(all_ranks_choose_alike) {
  if (kThreadSanitizer) return;
  auto result = run_ranks(options(3, RankKind::kProcesses), [](Rank& rank) {
    Coll barrier;
    rank.check_ok(rank.group->issue(barrier, nullptr, nullptr), "barrier");
    auto split = rank.group->split(rank.rank == 0 ? 0 : 1, 0, "part",
                                   rank.context->deadline(0));
    rank.check_ok(split.status(), "split");
    const PrivateMemory own = (*split)->private_memory();
    rank.check(std::string(own.access) == "read" || rank.rank == 0, own.access);
    if (rank.rank == 1) {
      rank.shared(0).store(own.stage_sums);
      rank.shared(1).store(own.stage_copies);
    }
    rank.check_ok(rank.group->issue(barrier, nullptr, nullptr), "barrier");
    const PrivateMemory world = rank.group->private_memory();
    rank.check(rank.shared(0).load() == world.stage_sums &&
                   rank.shared(1).load() == world.stage_copies,
               fmt::format("{} and {} against {} and {}", world.stage_sums,
                           world.stage_copies, rank.shared(0).load(),
                           rank.shared(1).load()));
    rank.check(world.stage_sums >= 0 && world.stage_sums <= int64_t{1} << 40,
               "bounds");
  });
  BOOST_TEST(result.ok(), result.text());
}

BOOST_AUTO_TEST_CASE(limits_given_are_used) {
  if (kThreadSanitizer) return;
  for (int64_t limit : {0, 1 << 20}) {
    RanksOptions how = options(2, RankKind::kProcesses);
    how.stage_limit = limit;
    auto result = run_ranks(how, [&](Rank& rank) {
      std::vector<float> data(100'000, 1.0f);
      Coll coll;
      coll.kind = CollKind::kAllReduce;
      coll.dtype = ALQ_F32;
      coll.count = static_cast<int64_t>(data.size());
      coll.src = coll.dst = data.data();
      rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "all_reduce");
      rank.check(rank.group->private_memory().stage_sums == limit, "limit");
      // Staging makes no system calls for data.
      GroupStats before = rank.group->stats();
      rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "again");
      GroupStats after = rank.group->stats();
      // The slots' part of bytes differs: a staged sum copies half of src.
      const int64_t read = after.bytes_read - before.bytes_read;
      const int64_t bytes = coll.count * 4;
      const int64_t scratch = limit == 0 ? bytes / 2 : bytes;
      rank.check(std::abs(read - (bytes + bytes / 2 + scratch)) <= 4096,
                 fmt::format("{} bytes read", read));
    });
    BOOST_TEST(result.ok(), result.text());
  }
}

// Equal operations are tried in other ways: staged and read ones alternate, by
// all ranks alike, and sums stay.
BOOST_AUTO_TEST_CASE(other_ways_are_tried) {
  if (kThreadSanitizer) return;
  auto result = run_ranks(options(3, RankKind::kProcesses), [](Rank& rank) {
    if (std::string(rank.group->private_memory().access) != "read") return;
    std::vector<float> src(30'000), dst(src.size());
    Coll coll;
    coll.kind = CollKind::kAllReduce;
    coll.dtype = ALQ_F32;
    coll.count = static_cast<int64_t>(src.size());
    coll.src = src.data();
    coll.dst = dst.data();
    const int64_t bytes = coll.count * 4;
    int64_t seen[2] = {};  // by whether the sources were copied through scratch
    for (int i = 0; i < 60; ++i) {
      std::fill(src.begin(), src.end(), static_cast<float>(rank.rank + i));
      const GroupStats before = rank.group->stats();
      rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "all_reduce");
      const GroupStats after = rank.group->stats();
      for (float x : dst) {
        rank.check(x == static_cast<float>(3 + 3 * i), "sum");
      }
      // Read: two thirds of src are copied to scratch.  Staged: two thirds of
      // src and a third of dst are copied to windows.
      const int64_t read = after.bytes_read - before.bytes_read;
      const int64_t moved = bytes + bytes * 2 / 3;
      const int64_t extra = read - moved;
      ++seen[extra > bytes * 5 / 6 ? 1 : 0];
      rank.check(std::abs(extra - bytes * 2 / 3) <= 4096 ||
                     std::abs(extra - bytes) <= 4096,
                 fmt::format("{} more bytes read of {}", extra, bytes));
    }
    rank.check(seen[0] >= 3 && seen[1] >= 3,
               fmt::format("{} read, {} staged", seen[0], seen[1]));
  });
  BOOST_TEST(result.ok(), result.text());
}

BOOST_AUTO_TEST_CASE(lines_cross_where_they_should) {
  mem::Trials t;
  t.small_bytes = 1000;
  t.large_bytes = 2000;
  // Staging costs 1 more per byte and starts 1500 lower.
  t.staged_small = 1000 + 100;
  t.staged_large = 2000 + 100;
  t.read_small = t.read_large = 1600;
  BOOST_TEST(mem::crossing(t) == 1500);
  // Never, always, and behind: within bounds.
  t.read_small = t.read_large = 50;
  BOOST_TEST(mem::crossing(t) == 0);
  t.read_small = 1e6;
  t.read_large = 3e6;
  BOOST_TEST(mem::crossing(t) == int64_t{1} << 40);
  t.staged_small = t.staged_large = 4e6;
  BOOST_TEST(mem::crossing(t) == 0);
}

}  // namespace
}  // namespace aliquot::test
