// The monotonic clock and deadlines on it.
#pragma once

#include <time.h>

#include <cstdint>
#include <limits>

namespace aliquot {

inline int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// The same clock as it was at its last tick, some ms ago at most; a few ns.
inline int64_t coarse_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

class Deadline {
 public:
  static Deadline after(int64_t ns) {
    int64_t now = now_ns();
    return Deadline(ns > std::numeric_limits<int64_t>::max() - now
                        ? std::numeric_limits<int64_t>::max()
                        : now + ns);
  }
  static Deadline never() {
    return Deadline(std::numeric_limits<int64_t>::max());
  }
  bool passed() const { return now_ns() >= at_; }
  int64_t at() const { return at_; }
  // Nanoseconds left, never negative.
  int64_t left() const {
    int64_t left = at_ - now_ns();
    return left > 0 ? left : 0;
  }

 private:
  explicit Deadline(int64_t at) : at_(at) {}
  int64_t at_;
};

}  // namespace aliquot
