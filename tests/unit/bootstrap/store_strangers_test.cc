// The store among wrong secrets, duplicates and strangers: the job goes on.
#include <boost/test/unit_test.hpp>
#include <memory>

#include "comm/bootstrap/auth.h"
#include "comm/bootstrap/wire.h"
#include "unit/bootstrap/store_fixture.h"

namespace aliquot {
namespace {

BOOST_AUTO_TEST_CASE(a_wrong_secret_fails_there_and_nowhere_else) {
  int port = free_port();
  auto statuses = run_ranks(4, [&](int32_t slot) {
    // Slot 3 is a second rank 2 with another secret; the real one comes later.
    Place p = place_at(port, slot == 3 ? 2 : slot, 3);
    if (slot == 3) p.secret = "wrong";
    if (slot == 2) usleep(300'000);
    return join_and_exchange(p, 30'000);
  });
  for (size_t r = 0; r < 3; ++r) {
    BOOST_TEST(statuses[r].ok(), statuses[r].message());
  }
  BOOST_TEST(statuses[3].code() == ALQ_UNAUTHENTICATED);
  BOOST_TEST(says(statuses[3], "ALIQUOT_SECRET"), statuses[3].message());
}

BOOST_AUTO_TEST_CASE(a_missing_rank_with_a_wrong_secret_is_told_apart) {
  int port = free_port();
  auto statuses = run_ranks(3, [&](int32_t rank) {
    Place p = place_at(port, rank, 3);
    if (rank == 1) p.secret = "wrong";
    return join_and_exchange(p, 600);
  });
  BOOST_TEST(statuses[1].code() == ALQ_UNAUTHENTICATED);
  for (size_t r : {0u, 2u}) {
    BOOST_TEST(statuses[r].code() == ALQ_DEADLINE_EXCEEDED);
    BOOST_TEST(says(statuses[r], "1 (refused: wrong secret)"),
               statuses[r].message());
  }
}

BOOST_AUTO_TEST_CASE(a_second_process_of_a_rank_is_refused_and_reported) {
  int port = free_port();
  auto statuses = run_ranks(3, [&](int32_t slot) {
    Place p = place_at(port, slot == 2 ? 1 : slot, 3);
    if (slot == 2) usleep(300'000);
    return join_and_exchange(p, 1'000);
  });
  BOOST_TEST(statuses[2].code() == ALQ_ALREADY_EXISTS);
  BOOST_TEST(says(statuses[2], "rank 1 has joined already"),
             statuses[2].message());
  for (size_t r : {0u, 1u}) {
    BOOST_TEST(statuses[r].code() == ALQ_DEADLINE_EXCEEDED);
    BOOST_TEST(says(statuses[r], "rank 1 came again"), statuses[r].message());
  }
}

BOOST_AUTO_TEST_CASE(strangers_do_not_disturb_the_join) {
  int port = free_port();
  auto statuses = run_ranks(4, [&](int32_t slot) -> Status {
    if (slot < 3) {
      if (slot == 2) usleep(500'000);
      return join_and_exchange(place_at(port, slot, 3), 30'000);
    }
    std::vector<std::unique_ptr<Stranger>> strangers;
    auto add = [&]() -> Stranger& {
      strangers.push_back(std::make_unique<Stranger>(port));
      return *strangers.back();
    };
    add();  // silent
    add().say("GET / HTTP/1.1\r\nHost: a\r\n\r\n" + std::string(100, ' '));
    add().say(std::string(100'000, '\xff'));  // garbage
    add().say("ALQST");                       // slow
    add().half_close();                       // half-open
    Hello hello;
    hello.rank = 2, hello.size = 3;
    add().say(raw(hello));   // stops after the hello
    Stranger& liar = add();  // proves with zeros
    liar.say(std::string(raw(hello)) + std::string(32, '\0'));
    for (int i = 0; i < 200; ++i) Stranger scan(port);  // port scan
    for (auto& s : strangers) ALQ_TRY(require(s->connected(), "connected"));
    return usleep(300'000), Status();
  });
  for (Status& s : statuses) BOOST_TEST(s.ok(), s.message());
}

BOOST_AUTO_TEST_CASE(more_strangers_than_room_push_out_the_oldest) {
  int port = free_port();
  auto statuses = run_ranks(3, [&](int32_t slot) -> Status {
    if (slot < 2) {
      if (slot == 1) usleep(500'000);
      return join_and_exchange(place_at(port, slot, 2), 30'000);
    }
    std::vector<std::unique_ptr<Stranger>> crowd;
    for (int i = 0; i < 300; ++i) {
      crowd.push_back(std::make_unique<Stranger>(port));
    }
    ALQ_TRY(require(crowd.front()->hear(1).empty(), "hung up on"));
    return usleep(500'000), Status();
  });
  for (Status& s : statuses) BOOST_TEST(s.ok(), s.message());
}

BOOST_AUTO_TEST_CASE(a_stranger_learns_nothing_but_nonce_and_version) {
  int port = free_port();
  auto statuses = run_ranks(3, [&](int32_t slot) -> Status {
    if (slot < 2) {
      if (slot == 1) usleep(400'000);
      return join_and_exchange(place_at(port, slot, 2), 30'000);
    }
    Hello hello;
    hello.rank = 1, hello.size = 2;
    Stranger liar(port);
    liar.say(raw(hello));
    std::string bytes = liar.hear(sizeof(Challenge));
    ALQ_TRY(require(bytes.size() == sizeof(Challenge), "one challenge"));
    liar.say(std::string(32, 'x'));
    std::string verdict = liar.hear(sizeof(Verdict) + 1);
    ALQ_TRY(require(verdict.size() == sizeof(Verdict), "one verdict"));
    Verdict v = from_raw<Verdict>(verdict);
    ALQ_TRY(require(v.code == ALQ_UNAUTHENTICATED, "refused"));
    return require(v.mac == Mac{}, "no proof of the store's own");
  });
  for (Status& s : statuses) BOOST_TEST(s.ok(), s.message());
}

// Rank 0 on a taken port moves on; the others find it past a foreign store.
BOOST_AUTO_TEST_CASE(a_range_of_ports_steps_over_other_jobs) {
  int port = free_port();
  std::string range =
      "127.0.0.1:" + std::to_string(port) + "-" + std::to_string(port + 15);
  auto statuses = run_ranks(4, [&](int32_t slot) {
    bool first_job = slot < 2;
    Place p = place_at(port, slot % 2, 2);
    p.address = range;
    p.secret = first_job ? "job one" : "job two";
    if (slot == 2) usleep(100'000);  // its rank 0 finds the first port taken
    if (slot == 1) usleep(500'000);
    return join_and_exchange(p, 30'000);
  });
  for (Status& s : statuses) BOOST_TEST(s.ok(), s.message());
}

BOOST_AUTO_TEST_CASE(another_protocol_version_is_told_ours) {
  int port = free_port();
  auto statuses = run_ranks(3, [&](int32_t slot) -> Status {
    if (slot < 2) {
      if (slot == 1) usleep(300'000);
      return join_and_exchange(place_at(port, slot, 2), 30'000);
    }
    Hello hello;
    hello.version = 77, hello.rank = 1, hello.size = 2;
    Stranger future(port);
    future.say(raw(hello));
    std::string bytes = future.hear(sizeof(Challenge) + 1);
    ALQ_TRY(require(bytes.size() == sizeof(Challenge), "one challenge"));
    return require(from_raw<Challenge>(bytes).version == kStoreVersion,
                   "our version");
  });
  for (Status& s : statuses) BOOST_TEST(s.ok(), s.message());
}

}  // namespace
}  // namespace aliquot
