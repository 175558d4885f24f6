#include "comm/mem/fenced_copy.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "base/process.h"

namespace aliquot::mem {
namespace {

std::vector<std::byte> numbers(size_t n) {
  std::vector<std::byte> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<std::byte>(1 + i % 251);
  return out;
}

BOOST_AUTO_TEST_CASE(copies_all_of_it_and_nothing_else) {
  if (!can_fence_copies()) return;
  const std::vector<std::byte> from = numbers(1200);
  const std::atomic<uint32_t> open{0};
  for (bool past_caches : {false, true}) {
    for (size_t bytes = 0; bytes < 300; ++bytes) {
      for (size_t shift : {0, 1, 32}) {
        std::vector<std::byte> to(600), want(600);
        std::memcpy(want.data() + 64 + shift, from.data() + shift, bytes);
        BOOST_TEST(
            fenced_copy(open, {to.data() + 64 + shift, from.data() + shift,
                               static_cast<int64_t>(bytes), past_caches}));
        BOOST_TEST((to == want), bytes << " bytes at " << shift);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_closed_word_stops_it) {
  if (!can_fence_copies()) return;
  const std::vector<std::byte> from = numbers(5000);
  std::vector<std::byte> to(5000);
  const std::atomic<uint32_t> closed{2};
  BOOST_TEST(!fenced_copy(closed, {to.data(), from.data(), 5000, false}));
  BOOST_TEST((to == std::vector<std::byte>(5000)));
}

// A copy that signals interrupt again and again comes to its end.
BOOST_AUTO_TEST_CASE(interruptions_do_no_harm) {
  if (!can_fence_copies()) return;
  static volatile sig_atomic_t signals;
  signals = 0;
  struct sigaction action = {}, before = {};
  action.sa_handler = [](int) { signals = signals + 1; };
  action.sa_flags = SA_RESTART;
  BOOST_REQUIRE(sigaction(SIGALRM, &action, &before) == 0);
  const itimerval often = {{0, 200}, {0, 200}}, never = {};
  BOOST_REQUIRE(setitimer(ITIMER_REAL, &often, nullptr) == 0);
  const std::vector<std::byte> from = numbers(65536);
  const std::atomic<uint32_t> open{0};
  bool good = true;
  int copies = 0;
  for (; copies < 200 || (signals < 20 && copies < 1'000'000); ++copies) {
    std::vector<std::byte> to(65536);
    good &= fenced_copy(open, {to.data(), from.data(), 65536, copies % 2 == 1});
    good &= to == from;
  }
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  BOOST_TEST(good);
  BOOST_TEST(signals >= 20, copies << " copies");
}

constexpr int64_t kBytes = 65536;
struct Page {
  std::atomic<uint32_t> closed{0};
  std::atomic<int64_t> copies{0};
  alignas(64) std::byte to[kBytes];
};

[[noreturn]] void copy_until_closed(Page* page, bool past_caches) {
  static const std::vector<std::byte> from = numbers(kBytes);
  while (
      fenced_copy(page->closed, {page->to, from.data(), kBytes, past_caches})) {
    page->copies.fetch_add(1);
  }
  _exit(0);
}

// Once a process is stopped and the word closed, its memory can be used for
// something else: what was under way is not finished when it goes on.
BOOST_AUTO_TEST_CASE(a_process_that_was_stopped_writes_no_more) {
  if (!can_fence_copies()) return;
  void* memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  BOOST_REQUIRE(memory != MAP_FAILED);
  std::mt19937 random(1);
  for (int round = 0; round < 1000; ++round) {
    auto* page = new (memory) Page;
    const pid_t child = fork();
    BOOST_REQUIRE(child >= 0);
    if (child == 0) copy_until_closed(page, round % 2 == 1);
    for (int i = 0; page->copies.load() < 3 && i < 10'000; ++i) usleep(100);
    usleep(static_cast<useconds_t>(random() % 300));
    BOOST_REQUIRE(kill(child, SIGSTOP) == 0);
    int status = 0;
    BOOST_REQUIRE(waitpid(child, &status, WUNTRACED) == child);
    BOOST_TEST(WIFSTOPPED(status));
    for (int i = 0; !all_threads_paused(child) && i < 10'000; ++i) usleep(100);
    page->closed.store(1);
    std::memset(page->to, 0, kBytes);
    BOOST_REQUIRE(kill(child, SIGCONT) == 0);
    BOOST_REQUIRE(waitpid(child, &status, 0) == child);
    BOOST_TEST(status == 0);
    BOOST_TEST(page->copies.load() >= 3);
    bool clean = true;
    for (std::byte byte : page->to) clean &= byte == std::byte{0};
    BOOST_TEST(clean, "round " << round);
  }
  munmap(memory, sizeof(Page));
}

}  // namespace
}  // namespace aliquot::mem
