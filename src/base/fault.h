// Named fault points, compiled into every build: tests place a kill, a stop, an
// exit, an error or a delay exactly where they want it instead of timing it.
// An unarmed point costs one relaxed load.
//
// Spec: "point[:hit][@rank]=action", comma separated.  Action "skip" is not an
// event but a state: it leaves out what a point of kSkipPoints guards, until it
// is disarmed.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace aliquot {

// Every point that exists, so that a misspelt one is an error.
extern const std::vector<std::string_view> kFaultPoints;

extern const std::vector<std::string_view> kSkipPoints;

class Faults {
 public:
  explicit Faults(int32_t rank) : rank_(rank) {}

  // Replaces what is armed; "" disarms.
  Status arm(std::string_view spec);

  // Marks the point as passed.  Returns an error only for action "error".
  Status point(std::string_view name) {
    if (!armed_.load(std::memory_order_relaxed)) return {};
    return hit(name);
  }

  // Whether "skip" is armed at the point.
  bool skips(std::string_view name) {
    return armed_.load(std::memory_order_relaxed) && skip_armed(name);
  }

 private:
  struct Fault {
    std::string point, action;
    int64_t hits_left = 1;
  };
  Status hit(std::string_view name);
  bool skip_armed(std::string_view name);

  const int32_t rank_;
  std::atomic<bool> armed_{false};
  std::mutex mutex_;
  std::vector<Fault> faults_;
};

}  // namespace aliquot
