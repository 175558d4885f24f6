// Who made a job fail: one sentence from what its ranks recorded.
//
// In this order: the rank that most others' errors name; the rank that is known
// to have ended first; of those that are gone without an error or an orderly
// end, the ones that others waited for; ranks that are stopped; where nobody is
// gone, a rank that others wait for and that has not called what they called.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/flight_read.h"

namespace aliquot::tools {

struct Blame {
  std::vector<int> culprits;  // empty: nobody
  std::string sentence;
  // Since when another rank has been in an operation, the oldest; 0: none is.
  int64_t since_ns = 0;
};
Blame blame(const std::vector<FlightRank>& ranks, const FirstGone& gone = {});

}  // namespace aliquot::tools
