// The store among well-behaved and late ranks, as threads.
#include <boost/test/unit_test.hpp>

#include "unit/bootstrap/store_fixture.h"

namespace aliquot {
namespace {

BOOST_AUTO_TEST_CASE(ranks_join_and_exchange_many_times) {
  int port = free_port();
  auto statuses = run_ranks(9, [&](int32_t rank) {
    return join_and_exchange(place_at(port, rank, 9), 30'000,
                             {"one", "two", "three", "four"});
  });
  for (Status& s : statuses) BOOST_TEST(s.ok(), s.message());
}

BOOST_AUTO_TEST_CASE(large_values_pass_and_too_large_ones_are_refused) {
  int port = free_port();
  constexpr size_t kMega = size_t{1} << 20;
  auto statuses = run_ranks(3, [&](int32_t rank) -> Status {
    ALQ_ASSIGN(auto b, store_bootstrap(place_at(port, rank, 3), in_ms(30'000)));
    auto refused = b->all_gather("big", Bytes(kMega + 1, 'x'), in_ms(30'000));
    if (refused.status().code() != ALQ_INVALID_ARGUMENT) {
      return make_error(ALQ_INTERNAL, "an oversized value passed");
    }
    Bytes mine(kMega, static_cast<char>('a' + rank));
    ALQ_ASSIGN(auto all, b->all_gather("mega", mine, in_ms(30'000)));
    for (size_t r = 0; r < 3; ++r) {
      if (all[r] != Bytes(kMega, static_cast<char>('a' + r))) {
        return make_error(ALQ_DATA_LOSS, "value of rank {}", r);
      }
    }
    return {};
  });
  for (Status& s : statuses) BOOST_TEST(s.ok(), s.message());
}

BOOST_AUTO_TEST_CASE(a_late_rank_is_waited_for) {
  int port = free_port();
  auto statuses = run_ranks(3, [&](int32_t rank) {
    if (rank != 1) usleep(rank == 0 ? 400'000 : 700'000);
    return join_and_exchange(place_at(port, rank, 3), 30'000);
  });
  for (Status& s : statuses) BOOST_TEST(s.ok(), s.message());
}

BOOST_AUTO_TEST_CASE(a_missing_rank_is_named_on_every_rank) {
  int port = free_port();
  auto statuses = run_ranks(3, [&](int32_t rank) {
    // Rank 0's word must win over the others' own deadlines, a tenth later.
    return join_and_exchange(place_at(port, rank, 6), 5'000);
  });
  for (Status& s : statuses) {
    BOOST_TEST(s.code() == ALQ_DEADLINE_EXCEEDED);
    BOOST_TEST(says(s, "3 of 6 ranks after "), s.message());
    BOOST_TEST(says(s, "missing ranks 3-5 (never connected)"), s.message());
    BOOST_TEST(s.rank() == 3);
  }
}

BOOST_AUTO_TEST_CASE(a_rank_that_joins_but_does_not_exchange_is_named) {
  int port = free_port();
  auto statuses = run_ranks(3, [&](int32_t rank) -> Status {
    ALQ_ASSIGN(auto b, store_bootstrap(place_at(port, rank, 3), in_ms(30'000)));
    if (rank == 2) return usleep(1'500'000), Status();
    return exchange(*b, "k", rank, 3, in_ms(300));
  });
  BOOST_TEST(statuses[2].ok());
  for (size_t r : {0u, 1u}) {
    BOOST_TEST(statuses[r].code() == ALQ_DEADLINE_EXCEEDED);
    BOOST_TEST(says(statuses[r], "2 of 3 ranks"), statuses[r].message());
    BOOST_TEST(says(statuses[r], "2 (connected, last seen 0."),
               statuses[r].message());
  }
}

BOOST_AUTO_TEST_CASE(a_rank_that_leaves_ends_the_exchange_at_once) {
  int port = free_port();
  int64_t start = now_ns();
  auto statuses = run_ranks(4, [&](int32_t rank) -> Status {
    ALQ_ASSIGN(auto b, store_bootstrap(place_at(port, rank, 4), in_ms(60'000)));
    if (rank == 3) return {};
    Status first = exchange(*b, "k", rank, 4, in_ms(60'000));
    Status second = exchange(*b, "l", rank, 4, in_ms(60'000));
    ALQ_TRY(
        require(second.message() == first.message(), "the first cause stays"));
    return first;
  });
  for (size_t r = 0; r < 3; ++r) {
    BOOST_TEST(statuses[r].code() == ALQ_PEER_FAILED);
    BOOST_TEST(statuses[r].rank() == 3);
    BOOST_TEST(says(statuses[r], "rank 3"), statuses[r].message());
  }
  BOOST_TEST(now_ns() - start < 30'000'000'000);
}

BOOST_AUTO_TEST_CASE(rank_0_leaving_is_told_to_the_others) {
  int port = free_port();
  auto statuses = run_ranks(2, [&](int32_t rank) -> Status {
    ALQ_ASSIGN(auto b, store_bootstrap(place_at(port, rank, 2), in_ms(30'000)));
    if (rank == 0) return {};
    return exchange(*b, "k", rank, 2, in_ms(30'000));
  });
  BOOST_TEST(statuses[1].code() == ALQ_PEER_FAILED);
  BOOST_TEST(statuses[1].rank() == 0);
}

BOOST_AUTO_TEST_CASE(different_exchanges_are_a_mismatch_naming_both) {
  int port = free_port();
  auto statuses = run_ranks(2, [&](int32_t rank) -> Status {
    ALQ_ASSIGN(auto b, store_bootstrap(place_at(port, rank, 2), in_ms(30'000)));
    return exchange(*b, rank == 0 ? "mesh" : "group", rank, 2, in_ms(30'000));
  });
  for (Status& s : statuses) {
    BOOST_TEST(s.code() == ALQ_RANK_MISMATCH);
    BOOST_TEST(says(s, "\"mesh\""), s.message());
    BOOST_TEST(says(s, "\"group\""), s.message());
  }
}

BOOST_AUTO_TEST_CASE(different_world_sizes_are_a_mismatch_naming_both) {
  int port = free_port();
  auto statuses = run_ranks(3, [&](int32_t rank) {
    return join_and_exchange(place_at(port, rank, rank == 2 ? 5 : 3), 30'000);
  });
  for (Status& s : statuses) {
    BOOST_TEST(s.code() == ALQ_RANK_MISMATCH);
    BOOST_TEST(says(s, "world size of 5"), s.message());
    BOOST_TEST(says(s, "with 3"), s.message());
  }
}

BOOST_AUTO_TEST_CASE(without_rank_0_the_deadline_says_so) {
  Status s = join_and_exchange(place_at(free_port(), 1, 2), 300);
  BOOST_TEST(s.code() == ALQ_DEADLINE_EXCEEDED);
  BOOST_TEST(says(s, "refused"), s.message());
  BOOST_TEST(s.rank() == 0);
}

BOOST_AUTO_TEST_CASE(bad_places_are_refused) {
  Place p = place_at(1, 0, 2);
  p.secret = "";
  BOOST_TEST(says(join_and_exchange(p, 100), "ALIQUOT_SECRET"));
  p = place_at(1, 2, 2);
  BOOST_TEST(join_and_exchange(p, 100).code() == ALQ_INVALID_ARGUMENT);
  p = place_at(1, 0, 2);
  p.address = "192.0.2.1:29500";  // TEST-NET: nobody's own address
  Status s = join_and_exchange(p, 100);
  BOOST_TEST(s.code() == ALQ_UNAVAILABLE);
  BOOST_TEST(says(s, "rank 0 must run on the host"), s.message());
}

BOOST_AUTO_TEST_CASE(a_world_of_one_uses_no_network) {
  Place alone;
  BOOST_TEST(join_and_exchange(alone, 100).ok());
}

}  // namespace
}  // namespace aliquot
