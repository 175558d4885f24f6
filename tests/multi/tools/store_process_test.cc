// The store among real processes: death, stopping, wrong secrets, strangers.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <functional>

#include "comm/bootstrap/wire.h"
#include "unit/bootstrap/store_fixture.h"

namespace aliquot {
namespace {

// Forked ranks; each sends back the status it ended with.
class Ranks {
 public:
  using Body = std::function<Status(int32_t)>;

  Ranks(int32_t count, const Body& body) {
    for (int32_t r = 0; r < count; ++r) start(r, body);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  ~Ranks() {
    for (Child& c : children_) {
      kill(c.pid, SIGKILL);
      waitpid(c.pid, nullptr, 0);
      close(c.fd);
    }
  }

  void signal(size_t rank, int number) { kill(children_[rank].pid, number); }

  // A rank that died without a word gives UNKNOWN; one that takes longer than
  // 60 s DEADLINE_EXCEEDED of the test's own.
  Status status(size_t rank) {
    std::string bytes;
    char buffer[4096];
    pollfd p = {children_[rank].fd, POLLIN, 0};
    while (true) {
      if (poll(&p, 1, 60'000) <= 0) {
        return make_error(ALQ_DEADLINE_EXCEEDED, "the test waited 60 s");
      }
      ssize_t n = read(p.fd, buffer, sizeof buffer);
      if (n <= 0) break;
      bytes.append(buffer, static_cast<size_t>(n));
    }
    if (bytes == "ok") return {};
    if (bytes.empty()) return make_error(ALQ_UNKNOWN, "died");
    return decode_failure(std::string_view(bytes).substr(sizeof(FrameHeader)));
  }

 private:
  struct Child {
    pid_t pid;
    int fd;
  };

  void start(int32_t rank, const Body& body) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
    pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      Status status = body(rank);
      std::string bytes = status.ok() ? "ok" : encode_failure(status);
      (void)!write(ends[1], bytes.data(), bytes.size());
      _exit(0);
    }
    close(ends[1]);
    children_.push_back({pid, ends[0]});
  }

  std::vector<Child> children_;
};

BOOST_AUTO_TEST_CASE(processes_join_and_exchange) {
  int port = free_port();
  Ranks ranks(8, [&](int32_t r) {
    return join_and_exchange(place_at(port, r, 8), 30'000, {"a", "b", "c"});
  });
  for (size_t r = 0; r < 8; ++r) {
    Status s = ranks.status(r);
    BOOST_TEST(s.ok(), s.message());
  }
}

BOOST_AUTO_TEST_CASE(a_rank_killed_in_an_exchange_is_named_at_once) {
  int port = free_port();
  int64_t start = now_ns();
  Ranks ranks(4, [&](int32_t r) -> Status {
    ALQ_ASSIGN(auto b, store_bootstrap(place_at(port, r, 4), in_ms(60'000)));
    ALQ_TRY(exchange(*b, "first", r, 4, in_ms(60'000)));
    if (r == 2) raise(SIGKILL);
    return exchange(*b, "second", r, 4, in_ms(60'000));
  });
  for (size_t r : {0u, 1u, 3u}) {
    Status s = ranks.status(r);
    BOOST_TEST(s.code() == ALQ_PEER_FAILED);
    BOOST_TEST(s.rank() == 2);
    BOOST_TEST(says(s, "rank 2"), s.message());
  }
  BOOST_TEST(now_ns() - start < 30'000'000'000);
}

BOOST_AUTO_TEST_CASE(a_killed_rank_0_is_told_by_its_silence) {
  int port = free_port();
  Ranks ranks(3, [&](int32_t r) -> Status {
    ALQ_ASSIGN(auto b, store_bootstrap(place_at(port, r, 3), in_ms(60'000)));
    if (r == 0) raise(SIGKILL);
    return exchange(*b, "k", r, 3, in_ms(60'000));
  });
  for (size_t r : {1u, 2u}) {
    Status s = ranks.status(r);
    BOOST_TEST(s.code() == ALQ_PEER_FAILED);
    BOOST_TEST(s.rank() == 0);
  }
}

BOOST_AUTO_TEST_CASE(a_stopped_rank_is_named_at_the_deadline) {
  int port = free_port();
  Ranks ranks(3, [&](int32_t r) -> Status {
    ALQ_ASSIGN(auto b, store_bootstrap(place_at(port, r, 3), in_ms(30'000)));
    if (r == 1) raise(SIGSTOP);
    return exchange(*b, "k", r, 3, in_ms(700));
  });
  for (size_t r : {0u, 2u}) {
    Status s = ranks.status(r);
    BOOST_TEST(s.code() == ALQ_DEADLINE_EXCEEDED);
    BOOST_TEST(says(s, "2 of 3 ranks"), s.message());
    BOOST_TEST(says(s, "1 (connected, last seen 0."), s.message());
  }
}

BOOST_AUTO_TEST_CASE(a_stopped_rank_0_does_not_hang_the_others) {
  int port = free_port();
  int64_t start = now_ns();
  Ranks ranks(2, [&](int32_t r) -> Status {
    ALQ_ASSIGN(auto b, store_bootstrap(place_at(port, r, 2), in_ms(30'000)));
    if (r == 0) raise(SIGSTOP);
    return exchange(*b, "k", r, 2, in_ms(500));
  });
  Status s = ranks.status(1);
  BOOST_TEST(s.code() == ALQ_DEADLINE_EXCEEDED);
  BOOST_TEST(says(s, "rank 0 may be stopped"), s.message());
  BOOST_TEST(now_ns() - start < 20'000'000'000);
}

BOOST_AUTO_TEST_CASE(late_missing_and_wrong_ranks) {
  int port = free_port();
  Ranks late(3, [&](int32_t r) {
    if (r == 2) usleep(600'000);
    return join_and_exchange(place_at(port, r, 3), 30'000);
  });
  int other = free_port();
  Ranks missing(2, [&](int32_t r) {
    return join_and_exchange(place_at(other, r, 4), 500);
  });
  for (size_t r = 0; r < 3; ++r) {
    Status s = late.status(r);
    BOOST_TEST(s.ok(), s.message());
  }
  for (size_t r = 0; r < 2; ++r) {
    Status s = missing.status(r);
    BOOST_TEST(s.code() == ALQ_DEADLINE_EXCEEDED);
    BOOST_TEST(says(s, "missing ranks 2-3 (never connected)"), s.message());
  }
}

BOOST_AUTO_TEST_CASE(wrong_secrets_duplicates_and_strangers_are_turned_away) {
  int port = free_port();
  Ranks ranks(5, [&](int32_t slot) -> Status {
    if (slot == 4) {
      Stranger garbage(port), slow(port), half_open(port), silent(port);
      garbage.say(std::string(100'000, '\x80'));
      half_open.half_close();
      for (char c : kStoreMagic) {  // one byte at a time
        slow.say({&c, 1});
        usleep(50'000);
      }
      return usleep(500'000), Status();
    }
    Place p = place_at(port, slot == 3 ? 1 : slot, 3);
    if (slot == 3) p.secret = "wrong";
    if (slot == 2) usleep(800'000);
    return join_and_exchange(p, 30'000);
  });
  for (size_t r : {0u, 1u, 2u, 4u}) {
    Status s = ranks.status(r);
    BOOST_TEST(s.ok(), s.message());
  }
  BOOST_TEST(ranks.status(3).code() == ALQ_UNAUTHENTICATED);
}

BOOST_AUTO_TEST_CASE(world_sizes_must_agree) {
  int port = free_port();
  Ranks ranks(2, [&](int32_t r) {
    return join_and_exchange(place_at(port, r, r == 0 ? 2 : 3), 30'000);
  });
  for (size_t r : {0u, 1u}) {
    Status s = ranks.status(r);
    BOOST_TEST(s.code() == ALQ_RANK_MISMATCH);
    BOOST_TEST(says(s, "world size of 3"), s.message());
    BOOST_TEST(says(s, "with 2"), s.message());
  }
}

// A crowd of 200 ranks, each a process.
BOOST_AUTO_TEST_CASE(a_large_world_joins_quickly) {
  constexpr int32_t kSize = 200;
  int port = free_port();
  Ranks ranks(kSize, [&](int32_t r) -> Status {
    ALQ_ASSIGN(auto b,
               store_bootstrap(place_at(port, r, kSize), in_ms(50'000)));
    ALQ_ASSIGN(auto all,
               b->all_gather("k", std::to_string(r * 7), in_ms(50'000)));
    for (int32_t p = 0; p < kSize; ++p) {
      ALQ_TRY(require(all[static_cast<size_t>(p)] == std::to_string(p * 7),
                      "every rank's value"));
    }
    return {};
  });
  for (size_t r = 0; r < kSize; ++r) {
    Status s = ranks.status(r);
    BOOST_TEST(s.ok(), s.message());
  }
}

}  // namespace
}  // namespace aliquot
