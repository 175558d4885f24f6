// aliquot bench coll: collectives through the public C ABI (stream NULL),
// against bare loops timed in the same run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/bench_floor.h"

namespace aliquot::tools {

struct CollCase {
  Op op = Op::kBarrier;
  int64_t bytes = 0;  // of the larger buffer of one rank
  std::string buffers = "shared";
  bool in_place = false;
};

struct Range {
  double low = 0, median = 0, high = 0;  // 10 %, 50 %, 90 %
};

struct CollResult {
  CollCase what;
  int64_t ops_per_batch = 0;
  Range seconds, floor_seconds;  // per operation, slowest rank
  Range ratio;                   // of adjacent pairs
  // Of private buffers the same for the loops of CallsFloor, if there are any.
  bool has_calls = false;
  Range calls_seconds, calls_ratio;
};

// The same loop in the cache of one core: alone, and on all ranks at once.
struct Health {
  double solo_spread = 0;  // 90 % over 10 % of its times
  double duo_over_solo = 0;
  double stolen = 0;  // part of the time in which a rank did not run, worst
  bool noisy = false;
};

struct CollOptions {
  int ranks = 2;
  std::vector<std::string> ops, buffers;
  std::vector<int64_t> sizes;
  int pairs = 15;
  double batch_ms = 4;
  bool fresh = false;  // sources are written before each operation, untimed
  std::string hints;   // of alq_open
  std::string json;    // file; empty: none
};

struct CollReport {
  const CollOptions* options = nullptr;
  Health before, after;
  std::vector<CollResult> results;
  bool noisy() const { return before.noisy || after.noisy; }
};

const char* op_name(Op op);
bool op_from_name(const std::string& name, Op* op);
// The cases that the options ask for.
std::vector<CollCase> make_cases(const CollOptions& options);

Range range_of(std::vector<double> values);
Health check_health(Team& team);

// Verified bit by bit first; then `pairs` times a batch of library calls and a
// batch of bare loops.
CollResult measure(Team& team, alq_group* group, alq_context* context,
                   const CollCase& what, const CollOptions& options);

void print_heading(const CollOptions& options, const Health& health);
void print_result(const CollResult& result);
void print_closing(const CollReport& report);
// aliquot bench call; the exit status.
int bench_call(const std::string& json);
// false: the file could not be written.
bool write_json(const CollReport& report);

}  // namespace aliquot::tools
