// Ranks that die, exit, stop or never come, placed by fault points in every
// collective: every other rank gets an error that names the culprit, in time,
// and nothing is left behind.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <thread>
#include <vector>

#include "fault/failing.h"

namespace aliquot::test {
namespace {

// Every collective, small and large, killed at each of its points.
BOOST_AUTO_TEST_CASE(a_killed_rank_ends_every_collective) {
  for (CollKind kind : kKinds) {
    for (int64_t count : {100, 100'000}) {
      for (const char* point : {"coll.issue", "coll.posted", "coll.data"}) {
        if (kind == CollKind::kBarrier && count > 100) continue;
        RanksOptions o = options(3, RankKind::kProcesses);
        o.faults = fmt::format("{}:2@1=kill", point);
        auto result =
            run_ranks(o, [&](Rank& rank) { until_failure(rank, kind, count); });
        std::string what =
            fmt::format("{} x {} at {}", coll_name(kind), count, point);
        check_survivors(result, 1, what);
        BOOST_TEST(result.ranks[1].signal == SIGKILL, what);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(an_exiting_rank_ends_every_collective) {
  for (CollKind kind : kKinds) {
    RanksOptions o = options(3, RankKind::kProcesses);
    o.faults = "coll.data:2@1=exit";
    auto result =
        run_ranks(o, [&](Rank& rank) { until_failure(rank, kind, 20'000); });
    check_survivors(result, 1, coll_name(kind));
    BOOST_TEST(result.ranks[1].exit_code == 7);
  }
}

// Rank 1 returns from its body: its context is released without close.
BOOST_AUTO_TEST_CASE(a_rank_that_leaves_is_named) {
  for (RankKind kind : kinds()) {
    for (CollKind coll : kKinds) {
      auto result = run_ranks(options(3, kind), [&](Rank& rank) {
        if (rank.rank != 1) until_failure(rank, coll, 2000);
      });
      BOOST_TEST(result.ok(), coll_name(coll) << ": " << result.text());
    }
  }
}

BOOST_AUTO_TEST_CASE(a_rank_that_never_comes_is_named_at_the_deadline) {
  for (RankKind kind : kinds()) {
    for (CollKind coll : kKinds) {
      auto result = run_ranks(options(3, kind), [&](Rank& rank) {
        rank.group->set_timeout_ns(100 * kMs);
        if (rank.rank == 1) {
          while (rank.shared(0).load() < 2) usleep(1000);
          return;
        }
        std::vector<float> src(6000, 1), dst(6000);
        int64_t start = now_ns();
        Coll call = coll_of(coll, 2000, src.data(), dst.data(), 0);
        const std::vector<int64_t> counts(3, 2000);
        if (coll == CollKind::kAllToAllV) {
          call.counts = call.recv_counts = counts;
        }
        Status status = rank.group->issue(call, nullptr, nullptr);
        expect_failure(rank, *rank.group, status, 1, ALQ_DEADLINE_EXCEEDED,
                       start, 1500);
        rank.check(status.message().find(coll_name(coll)) != std::string::npos,
                   "names the operation: " + status.message());
        rank.check(now_ns() - start >= 90 * kMs, "not before the deadline");
        rank.shared(0).fetch_add(1);
      });
      BOOST_TEST(result.ok(), coll_name(coll) << ": " << result.text());
    }
  }
}

BOOST_AUTO_TEST_CASE(a_stopped_rank_is_named_at_the_deadline) {
  RanksOptions o = options(3, RankKind::kProcesses);
  o.faults = "coll.posted:2@1=stop";
  o.deadline_ms = 300;
  std::vector<int32_t> pids(3);
  auto result = run_ranks(o, [&](Rank& rank) {
    rank.shared(10 + rank.rank).store(getpid());
    std::vector<float> x(50'000, 1);
    int64_t start = now_ns();
    Status status;
    for (int i = 0; i < 2 && status.ok(); ++i) {
      Coll coll = coll_of(CollKind::kAllReduce, 50'000, x.data(), x.data(), 0);
      start = now_ns();
      status = rank.group->issue(coll, nullptr, nullptr);
    }
    if (rank.rank == 1) {
      // Continued later, it finds itself fenced.
      rank.check(!status.ok(), "a stopped rank must not go on");
      return;
    }
    expect_failure(rank, *rank.group, status, 1, ALQ_DEADLINE_EXCEEDED, start,
                   2000);
    rank.shared(0).fetch_add(1);
    if (rank.rank == 0) {
      while (rank.shared(0).load() < 2) usleep(1000);
      kill(static_cast<pid_t>(rank.shared(11).load()), SIGCONT);
    }
  });
  BOOST_TEST(result.ok(), result.text());
}

// Long before the deadline of the operation.
BOOST_AUTO_TEST_CASE(a_stopped_rank_is_found_by_the_watchdog) {
  for (CollKind kind : kKinds) {
    RanksOptions o = options(3, RankKind::kProcesses);
    o.faults = "coll.posted:2@1=stop";
    o.time_scale = 0.02;  // after 100 ms
    auto result = run_ranks(o, [&](Rank& rank) {
      rank.shared(10 + rank.rank).store(getpid());
      if (rank.rank == 1) {
        Status status;
        std::vector<float> x(60'000, 1), y(60'000);
        const std::vector<int64_t> counts(3, 20'000);
        for (int i = 0; i < 2 && status.ok(); ++i) {
          Coll coll = coll_of(kind, 20'000, x.data(), y.data(), 0);
          if (kind == CollKind::kAllToAllV) {
            coll.counts = coll.recv_counts = counts;
          }
          status = rank.group->issue(coll, nullptr, nullptr);
        }
        // Continued later, it finds itself fenced, unless it was done.
        rank.check(!rank.group->issue(Coll{}, nullptr, nullptr).ok(),
                   "a stopped rank must not go on");
        return;
      }
      until_failure(rank, kind, 20'000);
      rank.check(rank.group->status().message().find("has been stopped") !=
                     std::string::npos,
                 rank.group->status().message());
      rank.shared(0).fetch_add(1);
      if (rank.rank == 0) {
        while (rank.shared(0).load() < 2) usleep(1000);
        kill(static_cast<pid_t>(rank.shared(11).load()), SIGCONT);
      }
    });
    BOOST_TEST(result.ok(), coll_name(kind) << ": " << result.text());
  }
}

BOOST_AUTO_TEST_CASE(a_rank_stopped_for_a_moment_goes_on) {
  RanksOptions o = options(3, RankKind::kProcesses);
  o.faults = "coll.posted:2@1=stop";
  auto result = run_ranks(o, [&](Rank& rank) {
    rank.shared(10 + rank.rank).store(getpid());
    std::thread waker;
    if (rank.rank == 0) {
      waker = std::thread([&] {
        while (rank.shared(11).load() == 0 || rank.shared(0).load() == 0) {
          usleep(1000);
        }
        usleep(300'000);
        kill(static_cast<pid_t>(rank.shared(11).load()), SIGCONT);
      });
    }
    std::vector<float> x(50'000, 1);
    for (int i = 0; i < 3; ++i) {
      Coll coll = coll_of(CollKind::kAllReduce, 50'000, x.data(), x.data(), 0);
      rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "all_reduce");
      rank.shared(0).store(1);
    }
    rank.check(x[0] == 27 && x[49'999] == 27, "sums");
    if (waker.joinable()) waker.join();
  });
  BOOST_TEST(result.ok(), result.text());
}

}  // namespace
}  // namespace aliquot::test
