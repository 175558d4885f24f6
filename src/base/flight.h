// Flight recorder: the last operations of a rank, in a file that outlives it.
//
// The file is a shared mapping: what was stored is there however the process
// ends, and nobody has to write anything at that moment.  One file per rank,
// DIR/rank-N.flight: a page about the rank and its first error, the groups, and
// a ring of the last operations.  `aliquot blame DIR` reads them.
//
// Cost: two clock readings and two cache lines per operation.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/flight_file.h"
#include "base/status.h"

namespace aliquot {

// An operation to be recorded.
struct FlightCall {
  uint32_t group = 0;
  int32_t kind = 0, dtype = 0, root = 0;
  uint64_t number = 0;
  int64_t count = 0;
  const char* label = "";
};

class Flight {
 public:
  // Names of the kinds and dtypes of calls, by number.
  struct Names {
    std::vector<std::string> kinds, dtypes;
  };
  static Result<std::unique_ptr<Flight>> create(const std::string& dir,
                                                int32_t rank, int32_t size,
                                                const Names& names);
  ~Flight();
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  // The id for FlightCall; beyond the table's end all share the last one.
  uint32_t add_group(const std::string& name, std::span<const int32_t> ranks);

  // Returns what the other calls take.
  uint64_t begin(const FlightCall& call);
  void set(uint64_t order, FlightState state);

  // The first error of this rank; later ones are ignored.
  void fail(const Status& error);
  void close();

 private:
  explicit Flight(FlightFile* file) : file_(file) {}

  FlightFile* const file_;
  std::atomic<uint64_t> order_{0};
  std::atomic<uint32_t> groups_{0};
  std::atomic<bool> failed_{false};
};

}  // namespace aliquot
