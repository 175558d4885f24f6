// Survivors that go on in a smaller group: the same members for all, whoever
// dies meanwhile; who was left out stays out.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <random>
#include <thread>
#include <vector>

#include "fault/failing.h"

namespace aliquot::test {
namespace {

using GroupPtr = std::shared_ptr<Group>;

int64_t members_of(const Group& group) {
  int64_t mask = 0;
  for (int32_t r : group.ranks()) mask |= int64_t{1} << r;
  return mask;
}

// Two survivors with different members of one generation are a failure.
void check_agreed(Rank& rank, const Group& group, int generation) {
  int64_t mine = members_of(group), none = 0;
  if (rank.shared(20 + generation).compare_exchange_strong(none, mine)) return;
  rank.check(none == mine,
             fmt::format("members {:#x} here, {:#x} elsewhere", mine, none));
}

// Sums of data that differs between ranks, inline and through memory.
Status sums(Rank& rank, Group& group) {
  float expected = 0;
  for (int32_t r : group.ranks()) expected += static_cast<float>(1 << r);
  for (size_t count : {10u, 300'000u}) {
    std::vector<float> x(count, static_cast<float>(1 << rank.rank));
    ALQ_TRY(
        group.issue(coll_of(CollKind::kAllReduce, static_cast<int64_t>(count),
                            x.data(), x.data(), 0),
                    nullptr, nullptr));
    rank.check(x[0] == expected && x[count - 1] == expected,
               fmt::format("sum {} instead of {}", x[0], expected));
  }
  return {};
}

// Fails, shrinks, and so on until a generation works.
GroupPtr survive(Rank& rank, int64_t timeout_ms = 5000) {
  GroupPtr group = rank.group;
  for (int generation = 1; generation <= rank.size; ++generation) {
    Status status;
    for (int i = 0; i < 30 && status.ok(); ++i) status = sums(rank, *group);
    if (status.ok()) return group;
    auto next = group->shrink(in_ms(timeout_ms));
    if (!next.ok()) {
      rank.check(false, "shrink: " + next.status().message());
      return nullptr;
    }
    group = *next;
    check_agreed(rank, *group, generation);
    rank.check(group->name() == fmt::format("world#{}", generation),
               "name " + group->name());
  }
  rank.check(false, "no generation works");
  return nullptr;
}

std::vector<int32_t> ranks_of(const Group& group) {
  return {group.ranks().begin(), group.ranks().end()};
}

BOOST_AUTO_TEST_CASE(survivors_of_a_kill_go_on) {
  if (kThreadSanitizer) return;
  for (const char* point : {"coll.issue", "coll.posted", "coll.data"}) {
    for (int32_t victim : {0, 1, 3}) {
      RanksOptions o = options(4, RankKind::kProcesses);
      o.faults = fmt::format("{}:5@{}=kill", point, victim);
      auto result = run_ranks(o, [&](Rank& rank) {
        GroupPtr group = survive(rank);
        if (group == nullptr) return;
        rank.check(members_of(*group) == (15 & ~(1 << victim)), "members");
        auto ordered = ranks_of(*group);
        rank.check(std::is_sorted(ordered.begin(), ordered.end()), "order");
        auto half = group->split(group->rank() % 2, 0, "half", in_ms(3000));
        rank.check_ok(half.status(), "split of the new group");
        rank.check((*half)->name() == "half#1", "name " + (*half)->name());
        rank.check_ok(sums(rank, **half), "sums of the part");
        rank.check_ok(group->close(in_ms(3000)), "close");
      });
      check_survivors(result, victim, fmt::format("{} @{}", point, victim));
    }
  }
}

// A second rank, the leader or another, dies while they agree.
BOOST_AUTO_TEST_CASE(a_death_during_the_shrink_costs_that_rank_alone) {
  if (kThreadSanitizer) return;
  for (const char* point : {"shrink.join", "shrink.make", "shrink.commit"}) {
    for (int32_t second : {0, 2}) {
      for (const char* action : {"kill", "error"}) {
        RanksOptions o = options(4, RankKind::kProcesses);
        o.faults =
            fmt::format("coll.data:2@1=kill,{}@{}={}", point, second, action);
        auto result = run_ranks(o, [&](Rank& rank) {
          if (rank.rank == second) {
            Status status;
            while (status.ok()) status = sums(rank, *rank.group);
            auto mine = rank.group->shrink(in_ms(5000));
            // An error after the last one's commit comes too late.
            rank.check(!mine.ok() || std::string(point) == "shrink.commit",
                       "went on after its own error");
            return;
          }
          GroupPtr group = survive(rank);
          if (group == nullptr) return;
          rank.check(members_of(*group) == (13 & ~(1 << second)), "members");
        });
        std::string what = fmt::format("{} {} @{}", point, action, second);
        BOOST_TEST(!result.timed_out, what);
        for (size_t q : {size_t{0}, size_t{2}, size_t{3}}) {
          BOOST_TEST(result.ranks[q].failures.empty(),
                     what << ": " << result.ranks[q].failures);
        }
      }
    }
  }
}

// What a rank that was removed gets, whatever it does.
void check_fenced(Rank& rank, Group& group, Group* part) {
  auto is_fenced = [&](const Status& status, const char* what) {
    rank.check(status.message().find("was removed from group \"world\"") !=
                   std::string::npos,
               fmt::format("{}: {} {}", what, status.code(), status.message()));
    rank.check(status.rank() == rank.rank, what);
  };
  std::vector<float> x(100'000, -1);
  for (CollKind kind : kKinds) {
    if (kind == CollKind::kAllToAllV) continue;
    is_fenced(group.issue(coll_of(kind, 1000, x.data(), x.data() + 50'000, 0),
                          nullptr, nullptr),
              coll_name(kind));
  }
  is_fenced(group.status(), "status");
  is_fenced(group.split(0, 0, "late", in_ms(500)).status(), "split");
  is_fenced(group.close(in_ms(500)), "close");
  is_fenced(group.allocate_common(4096, "late", in_ms(500)).status(), "common");
  is_fenced(group.shrink(in_ms(500)).status(), "shrink");
  if (part == nullptr) return;
  is_fenced(part->issue(Coll{}, nullptr, nullptr), "part");
  is_fenced(part->shrink(in_ms(500)).status(), "shrink of the part");
}

// Two stopped ranks wake up after the others went on: nothing of theirs works,
// not even between themselves, and the others never notice.
BOOST_AUTO_TEST_CASE(a_stopped_rank_that_wakes_up_is_fenced) {
  if (kThreadSanitizer) return;
  RanksOptions o = options(4, RankKind::kProcesses);
  o.faults = "coll.data:9@2=stop,coll.data:9@3=stop";
  o.time_scale = 0.01;
  auto result = run_ranks(o, [&](Rank& rank) {
    rank.shared(10 + rank.rank).store(getpid());
    auto pair = rank.group->split(rank.rank / 2, 0, "pair", in_ms(3000));
    rank.check_ok(pair.status(), "split");
    if (rank.rank >= 2) {
      Status status;
      for (int i = 0; i < 100 && status.ok(); ++i) {
        status = sums(rank, *rank.group);
      }
      rank.check(!status.ok(), "a stopped rank must not go on");
      check_fenced(rank, *rank.group, pair->get());
      rank.shared(1).fetch_add(1);
      return;
    }
    GroupPtr group = survive(rank);
    if (group == nullptr) return;
    rank.check(members_of(*group) == 3, "members");
    rank.check_ok(sums(rank, **pair), "a group of survivors is well");
    if (rank.rank == 0) {
      for (int q : {12, 13}) {
        kill(static_cast<pid_t>(rank.shared(q).load()), SIGCONT);
      }
    }
    // Meanwhile the others do what they can.
    Deadline until = in_ms(20'000);
    while (true) {
      rank.check_ok(sums(rank, *group), "the new generation");
      Coll barrier;
      rank.check_ok(group->issue(barrier, nullptr, nullptr), "barrier");
      if (!group->status().ok()) return;
      // Both ranks leave in the same round, as the vote alone says.
      bool enough = rank.shared(1).load() == 2 || until.passed();
      std::vector<float> seen(1, enough ? 1.0f : 0.0f);
      rank.check_ok(group->issue(coll_of(CollKind::kAllReduce, 1, seen.data(),
                                         seen.data(), 0),
                                 nullptr, nullptr),
                    "vote");
      if (seen[0] > 0) break;
    }
    rank.check(!until.passed(), "the woken ranks end in time");
    rank.check_ok(group->close(in_ms(3000)), "close");
  });
  BOOST_TEST(result.ok(), result.text());
}

// Alive, but it does not come: it is out when the time is over.
BOOST_AUTO_TEST_CASE(a_rank_that_does_not_come_is_left_out) {
  for (RankKind kind : kinds()) {
    auto result = run_ranks(options(3, kind), [](Rank& rank) {
      if (rank.rank == 1) {
        while (rank.shared(0).load() < 2) usleep(1000);
        check_fenced(rank, *rank.group, nullptr);
        rank.shared(1).store(1);
        return;
      }
      rank.group->set_timeout_ns(100 * kMs);
      rank.check(!sums(rank, *rank.group).ok(), "fails");
      int64_t start = now_ns();
      auto group = rank.group->shrink(in_ms(400));
      rank.check_ok(group.status(), "shrink");
      if (!group.ok()) return;
      rank.check(now_ns() - start < 1500 * kMs, "in time");
      rank.check(members_of(**group) == 5, "members");
      (*group)->set_timeout_ns(5000 * kMs);
      rank.check_ok(sums(rank, **group), "sums");
      rank.shared(0).fetch_add(1);
      while (rank.shared(1).load() == 0) usleep(1000);
      rank.check_ok(sums(rank, **group), "sums beside a removed rank");
    });
    BOOST_TEST(result.ok(), kind_name(kind) << ": " << result.text());
  }
}

BOOST_AUTO_TEST_CASE(ranks_that_disagreed_all_go_on_and_again) {
  for (RankKind kind : kinds()) {
    auto result = run_ranks(options(3, kind), [](Rank& rank) {
      GroupPtr group = rank.group;
      for (int generation = 1; generation <= 3; ++generation) {
        rank.check(group->shrink(in_ms(500)).status().code() ==
                       ALQ_FAILED_PRECONDITION,
                   "a group that is well");
        float x[200] = {}, y[200] = {};
        int64_t count = rank.rank == 2 ? 50 : 60;
        Status status = group->issue(
            coll_of(CollKind::kAllReduce, count, x, y, 0), nullptr, nullptr);
        rank.check(status.code() == ALQ_RANK_MISMATCH, status.message());
        auto next = group->shrink(in_ms(5000));
        rank.check_ok(next.status(), "shrink");
        if (!next.ok()) return;
        rank.check(group->shrink(in_ms(500)).status().code() ==
                       ALQ_FAILED_PRECONDITION,
                   "once");
        rank.check(!group->issue(Coll{}, nullptr, nullptr).ok(),
                   "the old group stays poisoned");
        group = *next;
        rank.check(group->size() == 3 && group->rank() == rank.rank, "all");
        rank.check(group->name() == fmt::format("world#{}", generation),
                   group->name());
        rank.check_ok(sums(rank, *group), "sums");
      }
    });
    BOOST_TEST(result.ok(), kind_name(kind) << ": " << result.text());
  }
}

BOOST_AUTO_TEST_CASE(a_rank_that_left_is_not_waited_for) {
  for (RankKind kind : kinds()) {
    auto result = run_ranks(options(4, kind), [](Rank& rank) {
      if (rank.rank == 2) return;
      int64_t start = now_ns();
      GroupPtr group = survive(rank, 8000);
      if (group == nullptr) return;
      rank.check(members_of(*group) == 11, "members");
      rank.check(now_ns() - start < 4000 * kMs, "without waiting");
    });
    BOOST_TEST(result.ok(), kind_name(kind) << ": " << result.text());
  }
}

// No memory for the new control block: all learn it and may try again.
BOOST_AUTO_TEST_CASE(full_memory_refuses_on_all_and_can_be_repeated) {
  if (kThreadSanitizer) return;
  RanksOptions o = options(3, RankKind::kProcesses);
  o.faults = "coll.data:2@2=kill";
  auto result = run_ranks(o, [](Rank& rank) {
    Status status;
    while (status.ok()) status = sums(rank, *rank.group);
    rlimit old{};
    getrlimit(RLIMIT_FSIZE, &old);
    if (rank.rank == 0) {
      signal(SIGXFSZ, SIG_IGN);
      rlimit little{65536, old.rlim_max};
      setrlimit(RLIMIT_FSIZE, &little);
    }
    auto first = rank.group->shrink(in_ms(5000));
    rank.check(first.status().code() == ALQ_RESOURCE_EXHAUSTED &&
                   first.status().rank() == 0,
               first.status().message());
    if (rank.rank == 0) setrlimit(RLIMIT_FSIZE, &old);
    auto second = rank.group->shrink(in_ms(5000));
    rank.check_ok(second.status(), "second try");
    if (second.ok()) rank.check_ok(sums(rank, **second), "sums");
  });
  check_survivors(result, 2, "full memory");
}

BOOST_AUTO_TEST_CASE(an_abort_ends_a_shrink_that_waits) {
  auto result = run_ranks(options(2, RankKind::kThreads), [](Rank& rank) {
    if (rank.rank == 1) {
      while (rank.shared(0).load() == 0) usleep(1000);
      return;
    }
    rank.group->abort(make_error(ALQ_ABORTED, "first"));
    std::thread other([&] {
      usleep(50'000);
      rank.group->abort(make_error(ALQ_ABORTED, "second"));
    });
    int64_t start = now_ns();
    Status status = rank.group->shrink(in_ms(20'000)).status();
    rank.check(status.code() == ALQ_ABORTED, status.message());
    rank.check(now_ns() - start < 5000 * kMs, "at once");
    other.join();
    rank.shared(0).store(1);
  });
  BOOST_TEST(result.ok(), result.text());
}

// Kills and delays anywhere: whoever goes on agrees with all others who do.
BOOST_AUTO_TEST_CASE(random_deaths_never_split_the_survivors) {
  if (kThreadSanitizer) return;
  const char* points[] = {"coll.issue",  "coll.data",   "coll.posted",
                          "shrink.join", "shrink.make", "shrink.commit"};
  for (uint32_t seed = 0; seed < 40; ++seed) {
    std::minstd_rand random(seed + 1);
    auto any = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    constexpr int32_t kSize = 5;
    RanksOptions o = options(kSize, RankKind::kProcesses);
    o.faults =
        fmt::format("{}:{}@{}=kill", points[any(3)], 1 + any(9), any(kSize));
    for (int i = 0; i < 3; ++i) {
      o.faults += fmt::format(
          ",{}:{}@{}={}", points[3 + any(3)], 1 + any(2), any(kSize),
          any(2) == 0 ? "kill" : fmt::format("delay_ms/{}", any(20)));
    }
    auto result = run_ranks(o, [&](Rank& rank) { survive(rank); });
    BOOST_TEST(!result.timed_out, o.faults);
    for (const RankOutcome& rank : result.ranks) {
      BOOST_TEST(rank.failures.empty(), o.faults << ": " << rank.failures);
    }
  }
}

}  // namespace
}  // namespace aliquot::test
