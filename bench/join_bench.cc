// 1,000 ranks join through the store, with client processes of their own,
// against as many bare connections with one round trip, in turn.
//
// Usage: join_bench [rounds]     exit status 1: the target is not met
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <vector>

#include "bench/join_crowd.h"

namespace {

using aliquot::bench::Crowd;
using aliquot::bench::CrowdResult;

constexpr double kTarget = 2;  // seconds

struct Range {
  double low, median, high;
};

Range range_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  auto at = [&](double part) {
    return values[static_cast<size_t>(
        part * static_cast<double>(values.size() - 1) + 0.5)];
  };
  return {at(0.1), at(0.5), at(0.9)};
}

void need(const CrowdResult& result) {
  if (result.error.empty()) return;
  fmt::print(stderr, "join_bench: {}\n", result.error);
  std::exit(2);
}

void print(const char* what, const Range& r, const char* unit) {
  fmt::print("  {:<34} {:8.3f} {} [{:.3f}-{:.3f}]\n", what, r.median, unit,
             r.low, r.high);
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = argc > 1 ? std::clamp(std::atoi(argv[1]), 1, 1000) : 9;
  Crowd crowd;
  std::vector<double> join, bare, ratio;
  CrowdResult last;
  for (int i = 0; i < rounds; ++i) {
    CrowdResult floor = bare_round_trips(crowd);
    need(floor);
    last = join_through_store(crowd);
    need(last);
    bare.push_back(floor.seconds);
    join.push_back(last.seconds);
    ratio.push_back(last.seconds / floor.seconds);
  }
  Range joined = range_of(join);
  fmt::print(
      "{} ranks join through the store: rank 0 and {} processes of clients on "
      "{} cores,\nmedian [10-90 %] of {} rounds\n",
      crowd.ranks, crowd.processes, std::thread::hardware_concurrency(),
      rounds);
  print("join and exchange, all ranks", joined, "s");
  print("bare connect + round trip", range_of(bare), "s");
  print("ratio", range_of(ratio), " ");
  int64_t peers = crowd.ranks - 1;
  fmt::print(
      "  messages: {} to the store, {} from it; bytes: {:.0f} to it and {:.0f} "
      "from it\n  per joining rank ({} of them the table of all values)\n",
      last.clients.messages, last.server.messages,
      static_cast<double>(last.clients.bytes) / static_cast<double>(peers),
      static_cast<double>(last.server.bytes) / static_cast<double>(peers),
      crowd.ranks * (crowd.value_bytes + 8));
  bool met = joined.median < kTarget;
  fmt::print("target < {:.0f} s: {}\n", kTarget, met ? "met" : "NOT met");
  return met ? 0 : 1;
}
