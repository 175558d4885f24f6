// MemGroup: a group of ranks that are threads or processes of one host.
#pragma once

#include <memory>
#include <string>

#include "comm/group.h"
#include "comm/mem/core.h"
#include "comm/normalize.h"

namespace aliquot::mem {

class MemGroup : public Group {
 public:
  MemGroup(std::shared_ptr<GroupCore> core, std::shared_ptr<CpuDevice> device)
      : device_(std::move(device)), core_(std::move(core)) {}

  int32_t rank() const override { return core_->rank; }
  int32_t size() const override { return core_->size; }
  std::span<const int32_t> ranks() const override { return core_->ranks; }
  const std::string& name() const override { return core_->name; }

  Status issue(const Coll& coll, Stream* stream,
               std::shared_ptr<Work>* work) override;
  Result<std::shared_ptr<Group>> split(int32_t color, int32_t key,
                                       std::string name,
                                       Deadline deadline) override;
  Result<std::shared_ptr<Group>> shrink(Deadline deadline) override;
  Abilities abilities() const override;
  Result<std::unique_ptr<Memory>> allocate_common(int64_t bytes,
                                                  std::string label,
                                                  Deadline deadline) override;
  int64_t timeout_ns() const override { return core_->timeout_ns.load(); }
  void set_timeout_ns(int64_t ns) override;
  Status status() const override;
  GroupStats stats() const override { return core_->stats.read(); }
  PrivateMemory private_memory() const override;
  void abort(const Status& reason) override;
  void fail_with(Group& other) override;
  void on_failure(std::shared_ptr<FailWord> word) override;
  Status close(Deadline deadline) override;

 private:
  // Whether calls are possible at all.
  Status enter();
  // Whether this rank has the group, well or not.
  Status usable();
  Status run_inline(const Coll& coll, int32_t flags, const Deadline* deadline);
  Status run_op(Op& op);
  // mine of every rank to all, over this group.
  Status exchange(const void* mine, void* all, int64_t bytes_each,
                  Deadline deadline);
  // Tells all whether everyone succeeded; the first failure otherwise.
  Status agree(const Status& mine, std::span<const int32_t> members,
               Deadline deadline);

  const std::shared_ptr<CpuDevice> device_;  // keeps the runner
  const std::shared_ptr<GroupCore> core_;
};

// Checks a call and fills in what zero stands for.
inline Status normalize(const GroupCore& core, Coll* coll) {
  return aliquot::normalize({core.name, core.rank, core.size}, coll);
}

// A new control block for `size` ranks, and a check of one that was attached.
Result<std::shared_ptr<Segment>> make_control(int32_t size,
                                              const std::string& name);
Status check_control(const Segment& segment, int32_t size,
                     const std::string& name);

}  // namespace aliquot::mem
