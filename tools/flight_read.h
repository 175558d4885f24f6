// Reads the files of the flight recorder.  They may be cut, foreign or garbage:
// whatever is read is checked before it is used.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/flight_file.h"

namespace aliquot::tools {

// One recorded operation, in words.
struct FlightOp {
  uint64_t order = 0, number = 0;
  int64_t issued_ns = 0, ended_ns = 0;
  uint32_t state = kFlightIssued;
  int32_t kind = 0;
  std::string group, text;   // "all_reduce #18 (1024 x f32, \"block3\")"
  std::vector<int> members;  // world ranks of the group
  // Of messages: the other end, a world rank, and the direction.
  int peer = -1;
  bool sends = false;
  bool is_message() const { return peer >= 0; }
  bool pending() const { return state < kFlightDone; }
};

struct FlightRank {
  int rank = 0, size = 0, pid = 0;
  std::string host;
  bool alive = false, stopped = false;
  uint32_t ending = kFlightOpen;
  int error_rank = -1;
  int64_t error_ns = 0, opened_ns = 0;
  std::string error;
  std::vector<FlightOp> ops;  // in the order they were called

  bool died() const { return ending == kFlightOpen && !alive; }
};

// Of one file's bytes; "" in *why when it was read.
bool read_flight(const std::string& bytes, FlightRank* out, std::string* why);

// All rank-N.flight of a folder, by rank.  *why: what was left out, and why.
std::vector<FlightRank> read_flights(const std::string& folder,
                                     std::string* why);

// Which rank ended first and how ("exited with code 1"), as a launcher wrote it
// down; rank -1 if none did.
struct FirstGone {
  int rank = -1;
  std::string how;
};
void write_first_gone(const std::string& folder, const FirstGone& gone);
FirstGone read_first_gone(const std::string& folder);

// Removes what an earlier job left in the folder.
void clear_flights(const std::string& folder);

}  // namespace aliquot::tools
