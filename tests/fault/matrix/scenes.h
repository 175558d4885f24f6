// What the ranks of a run do, and what they must see.
#pragma once

#include "fault/matrix/plan.h"

namespace aliquot::test {

// Counters of Rank::shared.
constexpr int kSurvivorsDone = 0, kVictimsDone = 1, kMet = 2, kPids = 10,
              kMembers = 20, kWorstNs = 50;

RanksOptions options_of(const Run& run);
void play(Rank& rank, const Run& run);

// The ranks that the run ends, and all that an error may name.
std::vector<int32_t> victims_of(const Run& run);
bool is_victim(const Run& run, int32_t rank);

}  // namespace aliquot::test
