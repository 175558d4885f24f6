// What a host may take away from a rank: descriptors, threads, the right to
// write its own memory.  No other rank is called dead for it, and an error
// names the rank that lacks something.
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <thread>
#include <vector>

#include "base/process.h"
#include "device/cpu/thread.h"
#include "fault/failing.h"

namespace aliquot::test {
namespace {

// While it lives, this process can open nothing more.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &old_);
    rlimit none{0, old_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &old_); }

 private:
  rlimit old_{};
};

// While it lives, this process can start no thread: none has such a stack.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_init(&old_);
    pthread_getattr_default_np(&old_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, size_t{1} << 50);
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&old_);
    pthread_attr_destroy(&old_);
  }

 private:
  pthread_attr_t old_;
};

BOOST_AUTO_TEST_CASE(the_state_of_a_process_is_known_or_said_to_be_unknown) {
  int ends[2];
  BOOST_REQUIRE(pipe(ends) == 0);
  pid_t child = fork();
  if (child == 0) {
    char byte;
    _exit(read(ends[0], &byte, 1) == 1 ? 0 : 1);
  }
  uint64_t start = process_info(child).start_time;
  BOOST_REQUIRE(start != 0);
  BOOST_TEST((process_state(child, start) == ProcessState::kRuns));
  BOOST_TEST((process_state(child, start + 1) == ProcessState::kEnded));
  kill(child, SIGSTOP);
  waitpid(child, nullptr, WUNTRACED);
  BOOST_TEST((process_state(child, start) == ProcessState::kStopped));
  {
    NoDescriptors none;
    BOOST_TEST((process_state(child, start) == ProcessState::kUnknown));
  }
  kill(child, SIGKILL);
  siginfo_t info = {};
  waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  // It waits to be reaped.
  BOOST_TEST((process_state(child, start) == ProcessState::kEnded));
  waitpid(child, nullptr, 0);
  BOOST_TEST((process_state(child, start) == ProcessState::kEnded));
  NoDescriptors none;
  BOOST_TEST((process_state(child, start) == ProcessState::kEnded));
  close(ends[0]);
  close(ends[1]);
}

BOOST_AUTO_TEST_CASE(a_rank_without_descriptors_calls_nobody_dead) {
  if (kThreadSanitizer) return;
  RanksOptions o = options(3, RankKind::kProcesses);
  o.time_scale = 0.01;  // the watchdog looks every 5 ms
  auto result = run_ranks(o, [](Rank& rank) {
    float x = static_cast<float>(rank.rank);
    auto sum = coll_of(CollKind::kAllReduce, 1, &x, &x, 0);
    rank.check_ok(rank.group->issue(sum, nullptr, nullptr), "before");
    if (rank.rank == 1) {
      NoDescriptors none;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    rank.check_ok(rank.group->issue(sum, nullptr, nullptr), "after");
    rank.check(x == 9, fmt::format("sum {}", x));
    rank.check_ok(rank.group->close(in_ms(5000)), "close");
  });
  BOOST_TEST(result.ok(), result.text());
}

// All of a job may be stopped, one rank after the other, and continued: who
// wakes up first finds the others stopped and has known that for long.
BOOST_AUTO_TEST_CASE(a_job_that_was_stopped_as_a_whole_goes_on) {
  if (kThreadSanitizer) return;
  RanksOptions o = options(2, RankKind::kProcesses);
  o.time_scale = 0.4;  // stopped for 2 s: failed; looked for every 200 ms
  auto result = run_ranks(o, [](Rank& rank) {
    rank.shared(rank.rank).store(getpid());
    rank.check_ok(rank.group->issue(Coll{}, nullptr, nullptr), "before");
    if (rank.rank == 0) {
      auto first = static_cast<pid_t>(rank.shared(0).load());
      auto second = static_cast<pid_t>(rank.shared(1).load());
      if (fork() == 0) {
        kill(first, SIGSTOP);
        usleep(450'000);  // rank 1 sees it
        kill(second, SIGSTOP);
        usleep(2'100'000);
        kill(second, SIGCONT);
        usleep(250'000);  // and sees it again
        kill(first, SIGCONT);
        _exit(0);
      }
      waitpid(-1, nullptr, 0);
    }
    rank.check_ok(rank.group->issue(Coll{}, nullptr, nullptr), "after");
    rank.check_ok(rank.group->close(in_ms(5000)), "close");
  });
  BOOST_TEST(result.ok(), result.text());
}

// While it lives, this process can open one file at a time.
class OneDescriptor {
 public:
  OneDescriptor() {
    getrlimit(RLIMIT_NOFILE, &old_);
    rlimit few{128, old_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    for (int fd = dup(0); fd >= 0; fd = dup(0)) held_.push_back(fd);
    close(held_.back());
    held_.pop_back();
  }
  ~OneDescriptor() {
    for (int fd : held_) close(fd);
    setrlimit(RLIMIT_NOFILE, &old_);
  }

 private:
  rlimit old_{};
  std::vector<int> held_;
};

// Every rank brings its blob; the world that comes of it.
Result<std::shared_ptr<Group>> connect(Rank& rank) {
  ALQ_ASSIGN(auto join, MemJoin::create(rank.context, rank.device));
  auto blobs = rank.exchange(join->blob());
  return join->connect(blobs, in_ms(5000));
}

// The one descriptor left is the watchdog's own, so it has no pidfds.
BOOST_AUTO_TEST_CASE(a_death_is_noticed_without_pidfds) {
  if (kThreadSanitizer) return;
  RanksOptions o = options(3, RankKind::kProcesses);
  o.join = false;
  auto result = run_ranks(o, [](Rank& rank) {
    {
      OneDescriptor one;
      auto world = connect(rank);
      rank.check_ok(world.status(), "connect");
      if (!world.ok()) return;
      rank.group = *world;
    }
    rank.check_ok(rank.context->faults.arm("coll.data:2@1=kill"), "arm");
    until_failure(rank, CollKind::kAllReduce, 3000);
  });
  check_survivors(result, 1, "a kill");
}

BOOST_AUTO_TEST_CASE(a_rank_without_threads_is_named_in_the_join) {
  if (kThreadSanitizer) return;
  RanksOptions o = options(3, RankKind::kProcesses);
  o.join = false;
  auto result = run_ranks(o, [](Rank& rank) {
    auto join = [&] {
      if (rank.rank != 1) return connect(rank);
      NoThreads none;
      return connect(rank);
    };
    auto world = join();
    rank.check(!world.ok(), "joined");
    rank.check(world.status().code() == ALQ_RESOURCE_EXHAUSTED &&
                   world.status().rank() == 1,
               world.status().message());
    // Rank 0 takes the memory along in which the others are told.
    rank.shared(0).fetch_add(1);
    while (rank.shared(0).load() < 3) usleep(1000);
  });
  BOOST_TEST(result.ok(), result.text());
}

BOOST_AUTO_TEST_CASE(a_thread_that_is_not_to_be_had_is_no_exception) {
  std::thread thread;
  {
    NoThreads none;
    BOOST_TEST(!start_thread(&thread, [] {}));
  }
  BOOST_TEST(!thread.joinable());
  BOOST_TEST(start_thread(&thread, [] {}));
  thread.join();
}

// Memory that is readable alone, as a destination of rank 1.
class ReadOnly {
 public:
  explicit ReadOnly(size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  ~ReadOnly() { munmap(data_, bytes_); }
  float* data() const { return static_cast<float*>(data_); }

 private:
  const size_t bytes_;
  void* data_;
};

BOOST_AUTO_TEST_CASE(who_can_not_write_its_own_memory_is_named) {
  if (kThreadSanitizer) return;
  constexpr int64_t kCount = 100'000;
  for (bool message : {false, true}) {
    RanksOptions o = options(3, RankKind::kProcesses);
    o.stage_limit = 0;  // read by system calls
    auto result = run_ranks(o, [&](Rank& rank) {
      ReadOnly bad(kCount * sizeof(float));
      std::vector<float> good(kCount, 1);
      float* data = rank.rank == 1 ? bad.data() : good.data();
      auto kind = !message         ? CollKind::kBroadcast
                  : rank.rank == 0 ? CollKind::kSend
                                   : CollKind::kRecv;
      int32_t root = message && rank.rank == 0 ? 1 : 0;
      Coll call = coll_of(kind, kCount, data, data, root);
      if (message && rank.rank == 2) call = Coll{};  // a barrier
      const int64_t start = now_ns();
      Status status;
      // A broadcast ends well for ranks that had their part before.
      for (int i = 0; i < 2 && status.ok(); ++i) {
        const int64_t ops = rank.group->stats().ops;
        status = rank.group->issue(call, nullptr, nullptr);
        const int64_t ended = rank.group->stats().ops - ops;
        // It does not begin where the group has failed by then.
        const bool refused = ended == 0 && !status.ok() && rank.rank != 1;
        rank.check(ended == 1 || refused, "it ends once");
        call = Coll{};
      }
      expect_failure(rank, *rank.group, status, 1, ALQ_INVALID_ARGUMENT, start,
                     kPromptMs);
    });
    BOOST_TEST(result.ok(), result.text());
  }
}

}  // namespace
}  // namespace aliquot::test
