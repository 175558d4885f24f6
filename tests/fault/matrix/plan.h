// Which runs the matrix has: every fault kind that exists for an operation, a
// kind of ranks and a number of ranks, at every placement.
#pragma once

#include <string>
#include <vector>

#include "fault/matrix/exercise.h"

namespace aliquot::test {

enum class Fault : int32_t {
  kKill,
  kStoreHost,
  kStop,
  kPause,
  kExit,
  kLate,
  kError,
  kInit,
  kSplit,
  kClose,
  kDouble,
  kOtherOp,
  kOtherCount,
  kOtherDtype,
  kOtherRoot,
  kOtherOrder,
  kFullMemory,
};
constexpr int kFaults = 17;
const char* fault_name(Fault fault);

struct Run {
  Fault fault;
  RankKind kind;
  int32_t size;
  Op op;
  Shape shape = Shape::kInline;
  // What exactly: a fault point, or a word that the scene knows.
  std::string place = {};
  int32_t victim = 1;
  // Of the detectors; a run of its own at 1.
  double scale = 0.01;

  std::string text() const;
};

// The fault does not meet an operation: nothing was called yet.
inline bool before_operations(Fault fault) { return fault == Fault::kInit; }

std::vector<Run> all_runs();
// One run per fault kind whose detection has a constant, at its default.
std::vector<Run> default_runs();

}  // namespace aliquot::test
