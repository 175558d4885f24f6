// The call log: what ranks that follow read is what the others called, however
// far they are ahead.
#include "engine/call_log.h"

#include <boost/test/unit_test.hpp>
#include <random>
#include <thread>

#include "support/ranks.h"

namespace aliquot::engine {
namespace {

using test::kinds;
using test::options;
using test::Rank;
using test::RanksOptions;
using test::RanksResult;
using test::run_ranks;

Call call_of(int64_t number) {
  return {CallKind::kUnitBegin, static_cast<int16_t>(number % 7),
          static_cast<int32_t>(number * 31), number, ~number};
}

std::unique_ptr<CallLog> make_log(Rank& rank) {
  auto log = CallLog::create(rank.group, 3, rank.context->deadline(0));
  rank.check_ok(log.status(), "create");
  return log.ok() ? std::move(*log) : nullptr;
}

// One rank's log, and how many calls it has made or followed.
struct Caller {
  Rank& rank;
  std::unique_ptr<CallLog> log = make_log(rank);
  int64_t made = 0;

  void call(int64_t until, std::mt19937& pause) {
    for (; made < until; ++made) {
      if (pause() % 512 == 0) std::this_thread::yield();
      rank.check_ok(log->record(call_of(made)), "record");
    }
  }

  // Until all have ended; whether some have left.
  bool follow(bool leaves) {
    rank.check_ok(log->end(leaves), "end");
    while (true) {
      Result<CallLog::Next> next = log->next();
      rank.check_ok(next.status(), "next");
      if (!next.ok() || next->author < 0) return next.ok() && next->left >= 0;
      rank.check(next->call == call_of(made), "the next call");
      rank.check(next->other < 0 && next->left < 0, "all called the same");
      rank.check_ok(log->follow(), "follow");
      ++made;
    }
  }
};

// Regions in which each rank ends at a place of its own; those that come
// farthest leave in every second.
void regions(Rank& rank, int64_t most, int count) {
  Caller caller{rank};
  if (caller.log == nullptr) return;
  std::mt19937 places(7), pause(static_cast<unsigned>(rank.rank));
  for (int region = 0; region < count; ++region) {
    int64_t mine = 0, farthest = 0;
    for (int32_t r = 0; r < rank.size; ++r) {
      auto calls = static_cast<int64_t>(places()) % (most + 1);
      farthest = std::max(farthest, calls);
      if (r == rank.rank) mine = calls;
    }
    int64_t begin = caller.made;
    caller.call(begin + mine, pause);
    bool leaves = region % 2 == 1 && mine == farthest;
    bool left = caller.follow(leaves);
    rank.check(left == (region % 2 == 1), "how the region ended");
    rank.check(caller.made == begin + farthest, "where the region ended");
    caller.log->finish_region();
  }
}

BOOST_AUTO_TEST_CASE(ranks_follow_whoever_goes_on) {
  for (test::RankKind kind : kinds()) {
    for (int32_t size : {2, 3, 5}) {
      RanksResult result = run_ranks(options(size, kind), [](Rank& rank) {
        regions(rank, 40, test::kSanitized ? 20 : 200);
      });
      BOOST_TEST(result.ok(), result.text());
    }
  }
}

// More calls than the log holds: who is ahead waits, and nothing is lost.
BOOST_AUTO_TEST_CASE(a_full_log_waits_for_the_slowest) {
  for (test::RankKind kind : kinds()) {
    RanksResult result = run_ranks(options(3, kind), [](Rank& rank) {
      regions(rank, 20'000, test::kSanitized ? 2 : 12);
    });
    BOOST_TEST(result.ok(), result.text());
  }
}

BOOST_AUTO_TEST_CASE(different_calls_are_seen) {
  for (test::RankKind kind : kinds()) {
    RanksResult result = run_ranks(options(3, kind), [](Rank& rank) {
      Caller caller{rank};
      std::mt19937 pause(1);
      caller.call(5, pause);
      if (rank.rank == 1) {
        rank.check_ok(caller.log->end(false), "end");
        Result<CallLog::Next> next = caller.log->next();
        rank.check_ok(next.status(), "next");
        rank.check(next.ok() && next->author == 0 && next->other == 2 &&
                       next->call == call_of(5) &&
                       next->other_call == call_of(6),
                   "who called what");
      } else {
        rank.check_ok(caller.log->record(call_of(rank.rank == 0 ? 5 : 6)),
                      "record");
      }
      rank.check_ok(rank.group->issue(Coll(), nullptr, nullptr), "barrier");
    });
    BOOST_TEST(result.ok(), result.text());
  }
}

BOOST_AUTO_TEST_CASE(a_log_that_was_reset_is_new) {
  for (test::RankKind kind : kinds()) {
    RanksResult result = run_ranks(options(2, kind), [](Rank& rank) {
      Caller caller{rank};
      std::mt19937 pause(1);
      for (int i = 0; i < 3; ++i) {
        caller.call(rank.rank == 0 ? 9 : 4, pause);
        // Rank 0 was not ready to end, when all was given up.
        if (rank.rank == 1) rank.check_ok(caller.log->end(false), "end");
        rank.check_ok(rank.group->issue(Coll(), nullptr, nullptr), "barrier");
        caller.log->reset();
        caller.made = 0;
        rank.check_ok(rank.group->issue(Coll(), nullptr, nullptr), "barrier");
        caller.call(rank.rank == 0 ? 3 : 1, pause);
        rank.check(!caller.follow(false), "nobody left");
        rank.check(caller.made == 3, "both are at the same place");
        caller.log->finish_region();
        rank.check_ok(rank.group->issue(Coll(), nullptr, nullptr), "barrier");
        caller.log->reset();
        caller.made = 0;
        rank.check_ok(rank.group->issue(Coll(), nullptr, nullptr), "barrier");
      }
    });
    BOOST_TEST(result.ok(), result.text());
  }
}

// Nobody calls anything: the wait ends with the deadline and names the rank.
BOOST_AUTO_TEST_CASE(waiting_has_a_deadline) {
  for (test::RankKind kind : kinds()) {
    RanksOptions run = options(2, kind);
    run.deadline_ms = 300;
    RanksResult result = run_ranks(run, [](Rank& rank) {
      std::unique_ptr<CallLog> log = make_log(rank);
      if (rank.rank == 0 || log == nullptr) {
        std::this_thread::sleep_for(std::chrono::milliseconds(800));
        return;
      }
      rank.check_ok(log->end(false), "end");
      Status status = log->next().status();
      rank.check(status.code() == ALQ_DEADLINE_EXCEEDED &&
                     status.message().find("rank 0") != std::string::npos,
                 "deadline: " + status.message());
    });
    BOOST_TEST(result.ok(), result.text());
  }
}

// Who records pays for a few stores only.
BOOST_AUTO_TEST_CASE(recording_is_no_operation) {
  RanksResult result =
      run_ranks(options(2, test::RankKind::kThreads), [](Rank& rank) {
        Caller caller{rank};
        if (caller.log == nullptr) return;
        GroupStats before = rank.group->stats();
        std::mt19937 pause(1);
        caller.call(4000, pause);
        GroupStats after = rank.group->stats();
        rank.check(after.ops == before.ops && after.syscalls == before.syscalls,
                   "operations while nobody follows");
        rank.check_ok(rank.group->issue(Coll(), nullptr, nullptr), "barrier");
      });
  BOOST_TEST(result.ok(), result.text());
}

}  // namespace
}  // namespace aliquot::engine
