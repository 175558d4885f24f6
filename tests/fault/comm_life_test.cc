// Ranks that fail in messages, join, split, close and queued work, aborts,
// forked children: errors that name the culprit, in time.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <thread>
#include <vector>

#include "fault/failing.h"

namespace aliquot::test {
namespace {

// send and recv with a peer that dies, leaves or does not come.
BOOST_AUTO_TEST_CASE(pairs_fail_by_name_too) {
  for (CollKind kind : {CollKind::kSend, CollKind::kRecv}) {
    for (const char* action : {"kill", "leave", "late"}) {
      auto result =
          run_ranks(options(3, RankKind::kProcesses), [&](Rank& rank) {
            std::string what = action;
            if (rank.rank == 1) {
              usleep(20'000);
              if (what == "kill") raise(SIGKILL);
              while (what == "late" && rank.shared(0).load() < 2) usleep(1000);
              return;
            }
            rank.group->set_timeout_ns(what == "late" ? 100 * kMs : 5000 * kMs);
            std::vector<float> x(2000, 1);
            int64_t start = now_ns();
            Status status = rank.group->issue(
                coll_of(kind, 2000, x.data(), x.data(), 1), nullptr, nullptr);
            expect_failure(
                rank, *rank.group, status, 1,
                what == "late" ? ALQ_DEADLINE_EXCEEDED : ALQ_PEER_FAILED, start,
                1500);
            rank.shared(0).fetch_add(1);
          });
      std::string name = fmt::format("{} {}", coll_name(kind), action);
      if (std::string(action) == "kill") {
        check_survivors(result, 1, name);
      } else {
        BOOST_TEST(result.ok(), name << ": " << result.text());
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(an_abort_wakes_everyone_with_its_reason) {
  for (RankKind kind : kinds()) {
    auto result = run_ranks(options(3, kind), [](Rank& rank) {
      if (rank.rank == 1) {
        usleep(30'000);
        rank.group->abort(make_error(ALQ_ABORTED, "loss is not finite"));
        return;
      }
      int64_t start = now_ns();
      Status status = rank.group->issue(Coll{}, nullptr, nullptr);
      expect_failure(rank, *rank.group, status, 1, ALQ_ABORTED, start, 1000);
      rank.check(
          status.message().find("loss is not finite") != std::string::npos,
          "repeats the reason");
    });
    BOOST_TEST(result.ok(), result.text());
  }
}

BOOST_AUTO_TEST_CASE(a_rank_killed_in_join_is_named) {
  for (int32_t victim : {0, 1}) {
    RanksOptions o = options(3, RankKind::kProcesses);
    o.faults = fmt::format("group.attach@{}=kill", victim);
    o.deadline_ms = 3000;
    auto result = run_ranks(o, [&](Rank& rank) {
      rank.check(!rank.joined.ok(), "the join can not succeed");
      rank.check(rank.joined.rank() == victim,
                 fmt::format("names {}: {}", rank.joined.rank(),
                             rank.joined.message()));
      // A survivor that exits at once would be a second failure.
      rank.shared(0).fetch_add(1);
      int64_t end = now_ns() + 3000 * kMs;
      while (rank.shared(0).load() < 2 && now_ns() < end) usleep(1000);
    });
    check_survivors(result, victim, "join");
  }
}

BOOST_AUTO_TEST_CASE(a_rank_that_does_not_join_is_named) {
  RanksOptions o = options(3, RankKind::kProcesses);
  o.faults = "group.attach@1=delay_ms/700";
  o.deadline_ms = 200;
  auto result = run_ranks(o, [&](Rank& rank) {
    if (rank.rank == 1) return;
    rank.check(rank.joined.code() == ALQ_DEADLINE_EXCEEDED,
               rank.joined.message());
    rank.check(rank.joined.rank() == 1, rank.joined.message());
  });
  BOOST_TEST(result.ok(), result.text());
}

BOOST_AUTO_TEST_CASE(split_and_close_fail_by_name) {
  struct Case {
    const char* fault;
    bool splits;
  };
  for (Case c :
       {Case{"group.split@1=kill", true}, Case{"group.attach:2@1=kill", true},
        Case{"group.close@1=kill", false}}) {
    RanksOptions o = options(3, RankKind::kProcesses);
    o.faults = c.fault;
    auto result = run_ranks(o, [&](Rank& rank) {
      if (!has_group(rank)) return;
      int64_t start = now_ns();
      Status status;
      if (c.splits) {
        status = rank.group->split(0, 0, "part", in_ms(4000)).status();
      } else {
        status = rank.group->close(in_ms(4000));
      }
      expect_failure(rank, *rank.group, status, 1, ALQ_PEER_FAILED, start,
                     kPromptMs);
    });
    check_survivors(result, 1, c.fault);
  }
}

// An attach that fails on one rank fails the split on all.
BOOST_AUTO_TEST_CASE(a_failed_attach_fails_the_whole_split) {
  RanksOptions o = options(3, RankKind::kProcesses);
  o.faults = "group.attach:2@2=error";
  auto result = run_ranks(o, [&](Rank& rank) {
    Status status = rank.group->split(0, 0, "part", in_ms(4000)).status();
    rank.check(status.code() == ALQ_INTERNAL && status.rank() == 2,
               status.message());
    rank.check_ok(rank.group->issue(Coll{}, nullptr, nullptr),
                  "the parent is well");
  });
  BOOST_TEST(result.ok(), result.text());
}

// A rank killed while its peers wait for queued work, with a progress thread.
BOOST_AUTO_TEST_CASE(queued_work_fails_by_name) {
  for (int32_t progress : {ALQ_PROGRESS_OFF, ALQ_PROGRESS_ON}) {
    RanksOptions o = options(3, RankKind::kProcesses);
    o.faults = "coll.data:3@1=kill";
    o.progress = progress;
    auto result = run_ranks(o, [&](Rank& rank) {
      if (!has_group(rank)) return;
      auto stream = *rank.device->create_stream("s");
      std::vector<std::vector<float>> data(6, std::vector<float>(5000, 1));
      std::vector<std::shared_ptr<Work>> works(6);
      for (size_t i = 0; i < 6; ++i) {
        Coll coll = coll_of(CollKind::kAllReduce, 5000, data[i].data(),
                            data[i].data(), 0);
        // Refused once the group has failed.
        Status status = rank.group->issue(coll, stream.get(), &works[i]);
        if (!status.ok()) rank.check(status.rank() == 1, status.message());
      }
      int failed = 0;
      for (auto& work : works) {
        Status status = work ? work->wait(in_ms(3000)) : Status();
        failed += !status.ok();
        if (!status.ok()) rank.check(status.rank() == 1, status.message());
      }
      Status sync = rank.device->synchronize(*stream, in_ms(3000));
      rank.check(failed == 0 || sync.rank() == 1,
                 "the stream reports it: " + sync.message());
      rank.check(!rank.group->status().ok(), "the group has failed");
    });
    check_survivors(result, 1, "queued");
  }
}

// A short wait for a work handle gives up, not the operation.
BOOST_AUTO_TEST_CASE(a_short_wait_for_a_work_leaves_the_group_well) {
  auto result = run_ranks(options(2, RankKind::kThreads), [](Rank& rank) {
    if (rank.rank == 1) {
      while (rank.shared(0).load() == 0) usleep(1000);
      rank.check_ok(rank.group->issue(Coll{}, nullptr, nullptr), "late");
      return;
    }
    auto stream = *rank.device->create_stream("s");
    std::shared_ptr<Work> work;
    rank.check_ok(rank.group->issue(Coll{}, stream.get(), &work), "issue");
    Status status = work->wait(in_ms(50));
    rank.check(status.code() == ALQ_DEADLINE_EXCEEDED, status.message());
    rank.check(!work->done(), "the operation goes on");
    rank.shared(0).store(1);
    rank.check_ok(work->wait(in_ms(3000)), "second wait");
  });
  BOOST_TEST(result.ok(), result.text());
}

// Queued work has the group's deadline, which names who is missing.
BOOST_AUTO_TEST_CASE(queued_work_ends_at_the_groups_deadline) {
  auto result = run_ranks(options(2, RankKind::kThreads), [](Rank& rank) {
    if (rank.rank == 1) {
      while (rank.shared(0).load() == 0) usleep(1000);
      return;
    }
    rank.group->set_timeout_ns(100 * kMs);
    auto stream = *rank.device->create_stream("s");
    std::shared_ptr<Work> work;
    rank.check_ok(rank.group->issue(Coll{}, stream.get(), &work), "issue");
    int64_t start = now_ns();
    Status status = work->wait(in_ms(3000));
    expect_failure(rank, *rank.group, status, 1, ALQ_DEADLINE_EXCEEDED, start,
                   1500);
    rank.shared(0).store(1);
  });
  BOOST_TEST(result.ok(), result.text());
}

// A forked child may not use its parent's group and does not harm it.
BOOST_AUTO_TEST_CASE(a_forked_child_is_refused) {
  auto result = run_ranks(options(2, RankKind::kProcesses), [](Rank& rank) {
    if (rank.rank == 0) {
      pid_t child = fork();
      if (child == 0) {
        Status status = rank.group->issue(Coll{}, nullptr, nullptr);
        bool good = status.code() == ALQ_FAILED_PRECONDITION;
        rank.group->abort(make_error(ALQ_ABORTED, "from the child"));
        rank.group.reset();
        rank.device.reset();
        _exit(good ? 0 : 1);
      }
      int status = 0;
      rank.check(waitpid(child, &status, 0) == child && status == 0,
                 "the child was refused");
    }
    rank.check_ok(rank.group->issue(Coll{}, nullptr, nullptr),
                  "the parent's group is well");
    rank.check_ok(rank.group->close(in_ms(3000)), "close");
  });
  BOOST_TEST(result.ok(), result.text());
}

// Memory of a rank that failed is not read after its call returned.
BOOST_AUTO_TEST_CASE(threads_stop_reading_before_the_owner_returns) {
  auto result = run_ranks(options(3, RankKind::kThreads), [](Rank& rank) {
    for (int i = 0; i < 20 && rank.group->status().ok(); ++i) {
      std::vector<float> x(400'000, 1), y(400'000);
      Coll coll = coll_of(CollKind::kAllReduce, 400'000, x.data(), y.data(), 0);
      if (rank.rank == 1 && i == 5) {
        rank.group->abort(make_error(ALQ_ABORTED, "enough"));
      }
      Status status = rank.group->issue(coll, nullptr, nullptr);
      rank.check(status.ok() || status.code() == ALQ_ABORTED ||
                     status.code() == ALQ_GROUP_POISONED,
                 status.message());
    }
    rank.check(!rank.group->status().ok(), "aborted");
  });
  BOOST_TEST(result.ok(), result.text());
}

// Of an all-reduce that was dropped with its stream, peers that write results
// into this rank's memory have stopped when its device is gone.
BOOST_AUTO_TEST_CASE(peers_do_not_write_where_an_operation_was_dropped) {
  constexpr int64_t kCount = 4'000'000;
  for (int round = 0; round < 5; ++round) {
    auto result = run_ranks(options(3, RankKind::kThreads), [&](Rank& rank) {
      std::vector<float> x(kCount, 1), y(kCount);
      Coll coll = coll_of(CollKind::kAllReduce, kCount, x.data(), y.data(), 0);
      rank.check_ok(rank.group->issue(Coll{}, nullptr, nullptr), "barrier");
      if (rank.rank != 1) {
        const int64_t start = now_ns();
        Status status = rank.group->issue(coll, nullptr, nullptr);
        expect_failure(rank, *rank.group, status, 1, ALQ_PEER_FAILED, start,
                       2000);
        return;
      }
      auto stream = std::move(*rank.device->create_stream("dropped"));
      rank.check_ok(rank.group->issue(coll, stream.get(), nullptr), "issue");
      usleep(500);
      stream.reset();
      rank.group.reset();
      rank.device.reset();
      // What they write last.
      const int64_t chunk = reduce_chunk(kCount, rank.size);
      float* const ends[] = {&y[static_cast<size_t>(chunk - 1)],
                             &y[static_cast<size_t>(kCount - 1)]};
      for (float* end : ends) *end = -1;
      usleep(50'000);
      for (float* end : ends) rank.check(*end == -1, "written afterwards");
    });
    BOOST_TEST(result.ok(), result.text());
  }
}

// Memory of a rank that failed is not read after its call returned, also where
// another thread of the reader receives messages of the group.
BOOST_AUTO_TEST_CASE(messages_do_not_hide_that_memory_is_read) {
  constexpr int64_t kCount = 1'000'000, kMessage = 2000;
  for (int round = 0; round < 40; ++round) {
    auto result = run_ranks(options(2, RankKind::kThreads), [&](Rank& rank) {
      const size_t bytes = kCount * sizeof(float);
      void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      rank.check(memory != MAP_FAILED, "mmap");
      auto* src = static_cast<float*>(memory);
      std::fill_n(src, kCount, 1.0f);
      std::vector<float> dst(kCount * 2), message(kMessage, 1);
      auto until_failed = [&rank](const Coll& coll) {
        Status status;
        while (status.ok()) status = rank.group->issue(coll, nullptr, nullptr);
      };
      const bool owner = rank.rank == 0;
      rank.check_ok(rank.group->issue(Coll{}, nullptr, nullptr), "barrier");
      std::thread messages([&] {
        until_failed(coll_of(owner ? CollKind::kSend : CollKind::kRecv,
                             kMessage, message.data(), message.data(),
                             1 - rank.rank));
      });
      std::thread end([&] {
        usleep(static_cast<useconds_t>(3000 + round * 50));
        if (owner) rank.group->abort(make_error(ALQ_ABORTED, "enough"));
      });
      until_failed(coll_of(CollKind::kAllGather, kCount, src, dst.data(), 0));
      if (owner) munmap(memory, bytes);
      messages.join();
      end.join();
      if (!owner) munmap(memory, bytes);
    });
    BOOST_TEST(result.ok(), result.text());
  }
}

}  // namespace
}  // namespace aliquot::test
