// What the kernels of a step read and write beside the arena: scalars, factors,
// shares, counters and what reductions note on their way; and what of it the
// host reads.  Made at commit, so that a step allocates nothing.
//
// The host writes none of it while kernels may be queued: what a step leaves
// behind, the next one's kernels clear.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "comm/consequences.h"
#include "device/device.h"
#include "engine/plan.h"

namespace aliquot::engine {

class StepMemory {
 public:
  struct Sizes {
    int32_t ranks = 1;         // data ranks, all
    int32_t microbatches = 1;  // per step
  };
  // reduce_ranks: world ranks of the group whose reductions note bad elements.
  static Result<std::unique_ptr<StepMemory>> create(
      Device* device, const Sizes& sizes, std::span<const int32_t> reduce_ranks,
      const std::vector<Optimizer>& optimizers);

  ~StepMemory();
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;

  // As new but for the count of steps; when nothing is queued any more.
  Status reset();

  // Of the device.
  kernels::StepScalars* scalars = nullptr;
  kernels::StepCounters* counters = nullptr;
  kernels::NormBins* counted = nullptr;  // by reductions, in this step so far
  kernels::BadSource* bad = nullptr;     // per microbatch
  kernels::StepFactors* factors = nullptr;  // per optimizer group
  int32_t* reduce_ranks = nullptr;
  kernels::StepShare *mine = nullptr, *all = nullptr;
  // Of the host: the last step's, and the first refused one that no call has
  // returned yet.
  kernels::StepResult* results = nullptr;
  // The host raises it at any time: communication of a step failed here.
  std::atomic<uint32_t>* failed = nullptr;
  // For groups that serve steps, until the next reset.
  std::shared_ptr<FailWord> fail_word() const { return fail_word_; }

 private:
  StepMemory() = default;
  void lend_fail_word();

  template <typename T>
  Status launch(kernels::OpCode op, const T& args) {
    return device_->launch(nullptr, op, &args, sizeof args);
  }

  Device* device_ = nullptr;
  int64_t microbatches_ = 1;
  uint64_t epoch_ = 0;  // how often it was reset, as on all ranks
  std::unique_ptr<Memory> memory_, host_;
  std::shared_ptr<FailWord> fail_word_;
};

}  // namespace aliquot::engine
