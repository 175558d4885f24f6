#include <boost/test/unit_test.hpp>

#include "unit/bootstrap/ranks.h"

namespace aliquot {
namespace {

BOOST_AUTO_TEST_CASE(threads_meet_and_exchange_again_and_again) {
  constexpr int32_t kSize = 6;
  for (int world = 0; world < 3; ++world) {  // the name is free again
    auto statuses = run_ranks(kSize, [](int32_t rank) -> Status {
      ALQ_ASSIGN(auto b, local_bootstrap("meet", rank, kSize));
      for (const char* key : {"a", "b", "c"}) {
        ALQ_TRY(exchange(*b, key, rank, kSize, in_ms(20'000)));
      }
      return {};
    });
    for (Status& s : statuses) BOOST_TEST(s.ok(), s.message());
  }
}

BOOST_AUTO_TEST_CASE(a_deadline_names_the_missing_threads) {
  auto statuses = run_ranks(2, [](int32_t rank) -> Status {
    ALQ_ASSIGN(auto b, local_bootstrap("late", rank, 4));
    return exchange(*b, "k", rank, 4, in_ms(100));
  });
  for (Status& s : statuses) {
    BOOST_TEST(s.code() == ALQ_DEADLINE_EXCEEDED);
    BOOST_TEST(s.rank() == 2);
    BOOST_TEST(s.message().find("2 of 4 ranks") != std::string::npos);
    BOOST_TEST(s.message().find("2-3 (never joined)") != std::string::npos,
               s.message());
  }
  // The failed world is gone: the name starts anew.
  auto again = run_ranks(4, [](int32_t rank) -> Status {
    ALQ_ASSIGN(auto b, local_bootstrap("late", rank, 4));
    return exchange(*b, "k", rank, 4, in_ms(20'000));
  });
  for (Status& s : again) BOOST_TEST(s.ok(), s.message());
}

BOOST_AUTO_TEST_CASE(a_thread_that_leaves_is_named_at_once) {
  int64_t start = now_ns();
  auto statuses = run_ranks(3, [](int32_t rank) -> Status {
    ALQ_ASSIGN(auto b, local_bootstrap("leaver", rank, 3));
    ALQ_TRY(exchange(*b, "first", rank, 3, in_ms(20'000)));
    if (rank == 1) return {};
    return exchange(*b, "second", rank, 3, in_ms(60'000));
  });
  BOOST_TEST(statuses[1].ok());
  for (size_t r : {0u, 2u}) {
    BOOST_TEST(statuses[r].code() == ALQ_PEER_FAILED);
    BOOST_TEST(statuses[r].rank() == 1);
  }
  BOOST_TEST(now_ns() - start < 20'000'000'000);
}

BOOST_AUTO_TEST_CASE(wrong_seats_are_refused) {
  auto first = local_bootstrap("seats", 1, 3);
  BOOST_REQUIRE(first.ok());
  auto twice = local_bootstrap("seats", 1, 3);
  BOOST_TEST(twice.status().code() == ALQ_ALREADY_EXISTS);
  auto other_size = local_bootstrap("seats", 2, 5);
  BOOST_TEST(other_size.status().code() == ALQ_RANK_MISMATCH);
  BOOST_TEST(other_size.status().message().find("5") != std::string::npos);
  BOOST_TEST(other_size.status().message().find("3") != std::string::npos);
  BOOST_TEST(local_bootstrap("", 0, 1).status().code() == ALQ_INVALID_ARGUMENT);
  BOOST_TEST(local_bootstrap("x", 2, 2).status().code() ==
             ALQ_INVALID_ARGUMENT);
  BOOST_TEST(local_bootstrap("x", -1, 2).status().code() ==
             ALQ_INVALID_ARGUMENT);
}

BOOST_AUTO_TEST_CASE(a_key_is_used_once) {
  auto b = local_bootstrap("solo", 0, 1);
  BOOST_REQUIRE(b.ok());
  BOOST_TEST((*b)->all_gather("k", "x", in_ms(1000)).ok());
  BOOST_TEST((*b)->all_gather("k", "x", in_ms(1000)).status().code() ==
             ALQ_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace aliquot
