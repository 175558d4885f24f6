// Addresses, ranges of ranks, and the wire's encodings.
#include <boost/test/unit_test.hpp>

#include "comm/bootstrap/address.h"
#include "comm/bootstrap/missing.h"
#include "comm/bootstrap/wire.h"

namespace aliquot {
namespace {

BOOST_AUTO_TEST_CASE(addresses_parse) {
  Result<StoreAddress> a = parse_store_address("node-1.example:29500");
  BOOST_REQUIRE(a.ok());
  BOOST_TEST(a->host == "node-1.example");
  BOOST_TEST(a->first == 29500);
  BOOST_TEST(!a->ranged());
  a = parse_store_address("[::1]:7000-7015");
  BOOST_REQUIRE(a.ok());
  BOOST_TEST(a->host == "::1");
  BOOST_TEST(a->last == 7015);
}

BOOST_AUTO_TEST_CASE(bad_addresses_say_why) {
  for (const char* text :
       {"", "host", ":1", "host:", "host:0", "host:65536", "host:x", "::1:80",
        "host:9-8", "host:1-300", "host:1-", "[]:1", "a]:1"}) {
    Result<StoreAddress> a = parse_store_address(text);
    BOOST_TEST(a.status().code() == ALQ_INVALID_ARGUMENT, text);
    BOOST_TEST(a.status().message().find("host:port") != std::string::npos);
  }
  BOOST_TEST(!parse_store_address(std::string(5000, 'x') + ":1").ok());
}

BOOST_AUTO_TEST_CASE(loopback_is_recognised_without_asking_anyone) {
  for (const char* host : {"localhost", "127.0.0.1", "127.9.9.9", "::1"}) {
    BOOST_TEST(names_loopback(host), host);
  }
  for (const char* host : {"10.0.0.1", "0.0.0.0", "::", "example.org"}) {
    BOOST_TEST(!names_loopback(host), host);
  }
}

BOOST_AUTO_TEST_CASE(ranks_are_ranges) {
  BOOST_TEST(rank_ranges({}) == "");
  BOOST_TEST(rank_ranges({5}) == "5");
  BOOST_TEST(rank_ranges({0, 1, 2, 3, 7, 9, 10}) == "0-3, 7, 9-10");
  std::vector<int32_t> odd;
  for (int32_t r = 1; r < 200; r += 2) odd.push_back(r);
  BOOST_TEST(rank_ranges(odd).ends_with("63 and 68 more"));
}

BOOST_AUTO_TEST_CASE(missing_ranks_share_their_state) {
  BOOST_TEST(missing_text({{5, "never connected"},
                           {6, "never connected"},
                           {7, "connected, last seen 0.3 s ago"}}) ==
             "ranks 5-6 (never connected), "
             "rank 7 (connected, last seen 0.3 s ago)");
  BOOST_TEST(seconds_text(2'040'000'000) == "2.0 s");
}

BOOST_AUTO_TEST_CASE(tables_survive_the_wire) {
  std::vector<std::string> values = {"", std::string("\0x", 2), "three"};
  std::string frame = encode_table(values);
  FrameHeader header = from_raw<FrameHeader>(frame);
  BOOST_TEST(header.body_bytes == frame.size() - sizeof header);
  std::string body = frame.substr(sizeof header);
  Result<std::vector<std::string>> back = decode_table(body, 3);
  BOOST_REQUIRE(back.ok());
  BOOST_TEST(*back == values);
}

BOOST_AUTO_TEST_CASE(malformed_tables_are_refused) {
  std::string body = encode_table({"one", "two"}).substr(sizeof(FrameHeader));
  for (size_t cut = 0; cut < body.size(); ++cut) {
    BOOST_TEST(!decode_table(body.substr(0, cut), 2).ok(), cut);
  }
  BOOST_TEST(!decode_table(body + "x", 2).ok());
  BOOST_TEST(!decode_table(std::string(8, '\xff'), 1).ok());
  BOOST_TEST(decode_failure("short").code() == ALQ_DATA_LOSS);
}

BOOST_AUTO_TEST_CASE(failures_survive_the_wire) {
  Status status = make_error(ALQ_PEER_FAILED, "rank 3 left").with_rank(3);
  Status back =
      decode_failure(encode_failure(status).substr(sizeof(FrameHeader)));
  BOOST_TEST(back.code() == ALQ_PEER_FAILED);
  BOOST_TEST(back.rank() == 3);
  BOOST_TEST(back.message() == "rank 3 left");
}

}  // namespace
}  // namespace aliquot
