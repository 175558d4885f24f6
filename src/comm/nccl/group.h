// NcclGroup: a group of ranks with a GPU each, communicating through NCCL.
//
// It stands on a control group over the same ranks, through which they agree on
// the communicator's id, on a split and on a shrink, share the board of calls
// and failures, and learn that a rank died.
//
// Every operation is enqueued; nothing blocks the host once the communicator is
// connected, and nothing is allocated once scratch memory has grown, so a step
// can be captured.  Sums are NCCL's: run-to-run equal on one machine, in no
// order that is promised.
#pragma once

#include <memory>
#include <string>

#include "comm/nccl/core.h"

namespace aliquot::nccl {

class NcclGroup : public Group {
 public:
  // Collective over control, whose ranks become the group's.
  static Result<std::shared_ptr<Group>> create(std::shared_ptr<Context> context,
                                               std::shared_ptr<Device> device,
                                               std::shared_ptr<Group> control,
                                               std::string name,
                                               Deadline deadline);

  explicit NcclGroup(std::shared_ptr<NcclCore> core) : core_(std::move(core)) {}

  int32_t rank() const override { return core_->rank; }
  int32_t size() const override { return core_->size; }
  std::span<const int32_t> ranks() const override {
    return core_->control->ranks();
  }
  const std::string& name() const override { return core_->name; }

  Status issue(const Coll& coll, Stream* stream,
               std::shared_ptr<Work>* work) override;
  Result<std::shared_ptr<Group>> split(int32_t color, int32_t key,
                                       std::string name,
                                       Deadline deadline) override;
  Result<std::shared_ptr<Group>> shrink(Deadline deadline) override;
  Abilities abilities() const override { return {}; }
  Result<std::unique_ptr<Memory>> allocate_common(int64_t bytes,
                                                  std::string label,
                                                  Deadline deadline) override;
  int64_t timeout_ns() const override { return core_->timeout_ns.load(); }
  void set_timeout_ns(int64_t ns) override;
  Status status() const override;
  GroupStats stats() const override { return core_->stats(); }
  PrivateMemory private_memory() const override { return {"device"}; }
  void abort(const Status& reason) override;
  void fail_with(Group& other) override;
  void on_failure(std::shared_ptr<FailWord> word) override;
  Status close(Deadline deadline) override;

 private:
  Status usable() const;
  Status enter();

  const std::shared_ptr<NcclCore> core_;
};

}  // namespace aliquot::nccl
