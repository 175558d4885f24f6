// Exact counts: bytes, system calls, threads, CPU time of a blocked rank.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <iterator>
#include <vector>

#include "comm/mem/fenced_copy.h"
#include "support/ranks.h"

namespace aliquot::test {
namespace {

Deadline soon() { return Deadline::after(5'000'000'000); }

struct Bytes {
  int64_t read, written, peer_read;
};

// Runs one call and compares what it cost with the formula.
void expect(Rank& rank, const Coll& coll, Bytes want, const char* what) {
  GroupStats before = rank.group->stats();
  rank.check_ok(rank.group->issue(coll, nullptr, nullptr), what);
  GroupStats after = rank.group->stats();
  Bytes got{after.bytes_read - before.bytes_read,
            after.bytes_written - before.bytes_written,
            after.peer_bytes_read - before.peer_bytes_read};
  rank.check(got.read == want.read && got.written == want.written &&
                 got.peer_read == want.peer_read,
             fmt::format("{}: read {} written {} of peers {}, expected {} {} "
                         "{}",
                         what, got.read, got.written, got.peer_read, want.read,
                         want.written, want.peer_read));
  rank.check(after.ops == before.ops + 1, "one operation counted");
}

// S: the full vector in bytes; P divides it.
void formulas(Rank& rank) {
  const int64_t p = rank.size, count = 64 * 1024 * p, s = count * 4;
  auto a = std::move(*rank.device->allocate(s, "a"));
  auto b = std::move(*rank.device->allocate(s, "b"));
  Coll coll;
  coll.dtype = ALQ_F32;
  coll.kind = CollKind::kAllReduce;
  coll.count = count;
  coll.src = coll.dst = a->data();
  const int64_t others = s / p * (p - 1);
  // Sums 1/P of all for all; or writes that, and then reads and writes (P-1)/P.
  const Bytes reduce = mem::can_fence_copies()
                           ? Bytes{s, s, others}
                           : Bytes{s + others, s / p + others, others + others};
  expect(rank, coll, reduce, "all_reduce in place");
  coll.dst = b->data();
  expect(rank, coll, reduce, "all_reduce out of place");
  coll.kind = CollKind::kReduceScatter;
  coll.count = count / p;
  expect(rank, coll, {s, s / p, others}, "reduce_scatter");
  coll.kind = CollKind::kAllGather;
  expect(rank, coll, {s, s, others}, "all_gather");
  coll.src = b->data() + rank.rank * (s / p);
  expect(rank, coll, {others, others, others}, "all_gather in place");
  coll.kind = CollKind::kAllToAll;
  coll.src = a->data();
  expect(rank, coll, {s, s, others}, "all_to_all");
  coll.kind = CollKind::kBroadcast;
  coll.count = count;
  coll.src = coll.dst = a->data();
  bool root = rank.rank == 0;
  int64_t taken = root ? 0 : s;
  expect(rank, coll, {taken, taken, taken}, "broadcast");
  // Small: the payload is copied to the slot, then all are summed.
  coll.kind = CollKind::kAllReduce;
  coll.count = 256;
  expect(rank, coll, {1024 + 1024 * p, 1024 + 1024, 1024 * (p - 1)},
         "small all_reduce");
  Coll barrier;
  expect(rank, barrier, {0, 0, 0}, "barrier");
}

BOOST_AUTO_TEST_CASE(bytes_equal_the_formulas) {
  for (RankKind kind : kinds()) {
    for (int32_t size : {2, 4}) {
      auto result = run_ranks(options(size, kind), formulas);
      BOOST_TEST(result.ok(), result.text());
    }
  }
}

BOOST_AUTO_TEST_CASE(a_world_of_one_moves_nothing_in_place) {
  auto result = run_ranks(options(1, RankKind::kThreads), [](Rank& rank) {
    float x[100] = {};
    Coll coll;
    coll.dtype = ALQ_F32;
    coll.kind = CollKind::kAllReduce;
    coll.count = 100;
    coll.src = coll.dst = x;
    expect(rank, coll, {0, 0, 0}, "all_reduce");
    coll.kind = CollKind::kAllGather;
    expect(rank, coll, {0, 0, 0}, "all_gather");
    coll.kind = CollKind::kReduceScatter;
    expect(rank, coll, {0, 0, 0}, "reduce_scatter");
    rank.check(rank.group->stats().syscalls == 0, "no system call");
  });
  BOOST_TEST(result.ok(), result.text());
}

// From here on any system call of this thread but waiting, waking and leaving
// ends the process with SIGSYS.
bool allow_only_waiting() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_yield, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{std::size(filter), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Each collective with 4 KiB or less, under the filter.
[[maybe_unused]] void small_calls(Rank& rank) {
  std::vector<float> src(1024, 1), dst(1024);
  Coll coll;
  coll.dtype = ALQ_F32;
  coll.src = src.data();
  coll.dst = dst.data();
  bool good = allow_only_waiting();
  for (int i = 0; i < 100; ++i) {
    for (CollKind kind :
         {CollKind::kAllReduce, CollKind::kAllGather, CollKind::kReduceScatter,
          CollKind::kBroadcast, CollKind::kAllToAll, CollKind::kBarrier}) {
      coll.kind = kind;
      bool whole = kind == CollKind::kAllReduce || kind == CollKind::kBroadcast;
      coll.count = whole ? 1024 : 1024 / rank.size;
      good &= rank.group->issue(coll, nullptr, nullptr).ok();
    }
  }
  if (good) rank.shared(0).fetch_add(1);
  rank.shared(2).fetch_add(1);
  // Who leaves early would be missed by the others.
  while (rank.shared(2).load() < rank.size) sched_yield();
  _exit(rank.shared(0).load() == rank.size ? 0 : 1);
}

// Sanitizers make calls of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
BOOST_AUTO_TEST_CASE(small_operations_call_the_system_only_to_wait) {
  for (int32_t size : {2, 4}) {
    auto result = run_ranks(options(size, RankKind::kProcesses), small_calls);
    for (const RankOutcome& rank : result.ranks) {
      BOOST_TEST(rank.signal == 0);
      BOOST_TEST(rank.exit_code == 0);
    }
  }
}
#endif

int64_t cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

BOOST_AUTO_TEST_CASE(a_blocked_rank_sleeps) {
  auto result = run_ranks(options(3, RankKind::kProcesses), [](Rank& rank) {
    std::vector<float> x(100'000, 1);
    Coll coll;
    coll.dtype = ALQ_F32;
    coll.kind = CollKind::kAllReduce;
    coll.count = 100'000;
    coll.src = coll.dst = x.data();
    rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "warm-up");
    if (rank.rank == 1) usleep(1'000'000);
    int64_t start = cpu_ns();
    Coll barrier;
    rank.check_ok(rank.group->issue(barrier, nullptr, nullptr), "barrier");
    int64_t used = cpu_ns() - start;
    if (rank.rank != 1) {
      rank.check(used < 20'000'000,
                 fmt::format("{} us of CPU in 1 s", used / 1000));
    }
    // The thread sanitizer has a thread of its own.
    rank.check(thread_count() <= (kThreadSanitizer ? 3 : 2),
               fmt::format("{} threads: caller and watchdog", thread_count()));
  });
  BOOST_TEST(result.ok(), result.text());
}

BOOST_AUTO_TEST_CASE(nothing_is_left_after_an_orderly_end) {
  int fds = open_fds(), maps = memfd_mappings(), threads = thread_count();
  auto result = run_ranks(options(4, RankKind::kThreads), [](Rank& rank) {
    auto half = rank.group->split(rank.rank % 2, 0, "half", soon());
    rank.check_ok(half.status(), "split");
    rank.check_ok((*half)->close(soon()), "close half");
    rank.check_ok(rank.group->close(soon()), "close");
  });
  BOOST_TEST(result.ok(), result.text());
  BOOST_TEST(open_fds() == fds);
  BOOST_TEST(memfd_mappings() == maps);
  BOOST_TEST(thread_count() == threads);
}

}  // namespace
}  // namespace aliquot::test
