// A slower wire than this host has, for tests and demonstrations of overlap:
// after an operation the stream holds for as long as its bytes would have taken
// at `throttle_bytes_per_s`.  The delay costs no CPU time.
#pragma once

#include "base/clock.h"
#include "comm/normalize.h"
#include "device/cpu/op.h"

namespace aliquot::mem {

class HoldOp : public Op {
 public:
  explicit HoldOp(int64_t ns) : ns_(ns) {}
  void post() override { start(); }
  Step step(bool) override {
    start();
    return now_ns() >= until_ ? Step::kDone : Step::kWaiting;
  }
  int64_t wake_at() const override { return until_; }

 private:
  void start() {
    if (until_ == 0) until_ = now_ns() + ns_;
  }
  const int64_t ns_;
  int64_t until_ = 0;
};

}  // namespace aliquot::mem
