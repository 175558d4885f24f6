// What a join through the store costs, counted exactly: messages and bytes of
// worlds whose ranks are spread over processes.
//
// With N ranks, keys of k and values of v bytes, each of the N - 1 that join
//   sends     Hello 56, Proof 32, frame 16 + k + v          3 messages
//   is sent   Challenge 48, Verdict 40, frame 16,
//             table 16 + N (8 + v)                          4 messages
// so that messages, and all bytes but the N values that every rank asked for,
// grow with N alone.
#include <boost/test/unit_test.hpp>

#include "bench/join_crowd.h"
#include "comm/bootstrap/wire.h"

namespace aliquot {
namespace {

// A rank that was frozen for half a second tries again, and sends more: such a
// round says nothing about the protocol.
bench::CrowdResult quiet_join(const bench::Crowd& crowd) {
  bench::CrowdResult result;
  for (int round = 0; round < 10; ++round) {
    result = bench::join_through_store(crowd);
    if (result.clients.messages == 3 * (crowd.ranks - 1)) break;
  }
  return result;
}

void check_world(int32_t ranks, int processes) {
  bench::Crowd crowd;
  crowd.ranks = ranks, crowd.processes = processes;
  bench::CrowdResult r = quiet_join(crowd);
  BOOST_TEST_CONTEXT(ranks << " ranks") {
    BOOST_TEST(r.error == "");
    const int64_t n = ranks, peers = n - 1, value = crowd.value_bytes;
    const int64_t key = 7;  // "world@0"
    BOOST_TEST(r.clients.messages == 3 * peers);
    BOOST_TEST(r.server.messages == 4 * peers);
    BOOST_TEST(r.clients.bytes == peers * (56 + 32 + 16 + key + value));
    BOOST_TEST(r.server.bytes == peers * (48 + 40 + 16 + 16 + n * (8 + value)));
    // Calls in vain (nothing there yet, no room yet) are a few per rank too.
    BOOST_TEST(r.server.calls <= 20 * peers);
    // An order of magnitude more than the target of scripts/bench.
    BOOST_TEST(r.seconds < 20);
  }
}

BOOST_AUTO_TEST_CASE(messages_and_bytes_of_a_join_are_linear_in_ranks) {
  check_world(2, 1);
  check_world(50, 4);
  check_world(250, 4);
  check_world(1000, 4);
}

}  // namespace
}  // namespace aliquot
