// Op: a resumable operation of a CPU stream.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/status.h"

namespace aliquot {

enum class Step {
  kDone,
  kProgress,  // moved on, and can move on at once
  kWaiting,   // for another rank, stream or turn
  kFailed,    // ended; see status()
};

class Op {
 public:
  virtual ~Op() = default;

  // Cheap announcement when the operation reaches the head of its stream; moves
  // no bulk data and never blocks.
  virtual void post() {}

  // Advances by at most a few hundred KiB of data and never blocks.  `slow`:
  // the caller slept or yielded since the last call, so there is time for
  // checks that cost (deadlines).
  virtual Step step(bool slow) = 0;

  // When kWaiting ends by the clock alone (see now_ns); others are woken by a
  // bell.
  virtual int64_t wake_at() const { return INT64_MAX; }

  // After kFailed.
  virtual Status status() const { return {}; }
};

// Keeps an object alive until its stream gets here.
class PinOp : public Op {
 public:
  explicit PinOp(std::shared_ptr<void> object) : object_(std::move(object)) {}
  Step step(bool) override { return Step::kDone; }

 private:
  const std::shared_ptr<void> object_;
};

}  // namespace aliquot
