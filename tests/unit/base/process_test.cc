#include "base/process.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <new>

namespace aliquot {
namespace {

// A child that counts, or sleeps.
class Child {
 public:
  explicit Child(bool counts) {
    void* page = mmap(nullptr, sizeof *count_, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    BOOST_REQUIRE(page != MAP_FAILED);
    count_ = new (page) std::atomic<int64_t>(0);
    pid_ = fork();
    BOOST_REQUIRE(pid_ >= 0);
    if (pid_ != 0) return;
    alarm(60);
    while (counts) count_->fetch_add(1);
    for (;;) pause();
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    munmap(count_, sizeof *count_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  int64_t count() const { return count_->load(); }
  uint64_t start() const { return process_info(pid_).start_time; }

  // Whether it counts on within a second.
  bool goes_on() const {
    const int64_t before = count();
    for (int i = 0; i < 1000 && count() == before; ++i) usleep(1000);
    return count() != before;
  }
  bool pauses() const {
    bool paused = false;
    for (int i = 0; i < 1000 && !paused; ++i) {
      paused = all_threads_paused(pid_);
      usleep(1000);
    }
    return paused;
  }

 private:
  pid_t pid_;
  std::atomic<int64_t>* count_;
};

BOOST_AUTO_TEST_CASE(who_runs_is_not_paused) {
  BOOST_TEST(!all_threads_paused(getpid()));
  Child child(true);
  BOOST_TEST(child.goes_on());
  for (int i = 0; i < 100; ++i) BOOST_TEST(!all_threads_paused(child.pid()));
}

BOOST_AUTO_TEST_CASE(who_sleeps_is_paused) {
  Child child(false);
  BOOST_TEST(child.pauses());
}

// At once, not when the state says so for the first time.
BOOST_AUTO_TEST_CASE(who_is_stopped_is_paused_when_it_counts_no_more) {
  Child child(true);
  for (int round = 0; round < 200; ++round) {
    BOOST_REQUIRE(child.goes_on());
    BOOST_REQUIRE(kill(child.pid(), SIGSTOP) == 0);
    BOOST_REQUIRE(waitpid(child.pid(), nullptr, WUNTRACED) == child.pid());
    BOOST_REQUIRE(child.pauses());
    const int64_t count = child.count();
    BOOST_TEST(
        (process_state(child.pid(), child.start()) == ProcessState::kStopped));
    BOOST_TEST(child.count() == count);
    BOOST_REQUIRE(kill(child.pid(), SIGCONT) == 0);
  }
}

BOOST_AUTO_TEST_CASE(nobody_is_paused) {
  pid_t pid;
  {
    Child child(false);
    pid = child.pid();
  }
  BOOST_TEST(all_threads_paused(pid));
}

}  // namespace
}  // namespace aliquot
