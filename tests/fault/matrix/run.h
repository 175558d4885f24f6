// Runs one cell's run and says whether all ranks saw what they must.
#pragma once

#include "fault/matrix/plan.h"

namespace aliquot::test {

struct RunResult {
  bool passed = false;
  std::string text;      // what was wrong, else empty
  int64_t worst_ns = 0;  // longest failing call of a rank
  bool blamed = false;   // the sentence of `aliquot blame` was checked
};

// blame: let ranks keep flight recorders, and check the sentence made of them.
RunResult run_once(const Run& run, bool blame);

// Whether a run leaves records that name its victim.
bool can_blame(const Run& run);

}  // namespace aliquot::test
