// The table of docs/faults.md.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "fault/matrix/run.h"

namespace aliquot::test {

struct Tally {
  int64_t run = 0, passed = 0;
  int64_t worst_ns = 0;
};

class Report {
 public:
  void add(const Run& run, const RunResult& result);
  void add_default(const Run& run, const RunResult& result);
  int64_t run() const { return run_; }
  int64_t passed() const { return passed_; }
  int64_t blamed() const { return blamed_; }

  std::string markdown(int repeats) const;

 private:
  using Key = std::tuple<Fault, RankKind, Op>;
  std::string row(Fault fault, RankKind kind) const;

  std::map<Key, Tally> cells_;
  std::map<Fault, int64_t> defaults_;
  int64_t run_ = 0, passed_ = 0, blamed_ = 0;
};

// "" when the page has a row for every fault kind and a number for every cell,
// all passed and of as many runs as there are; else what differs.
std::string check_page(const std::string& page);

}  // namespace aliquot::test
