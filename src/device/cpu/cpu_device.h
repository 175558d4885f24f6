// The CPU as a Device: queues run by whoever waits, shared memory.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "base/context.h"
#include "device/cpu/runner.h"
#include "device/cpu/segment.h"
#include "device/device.h"

namespace aliquot {

class CpuDevice : public Device {
 public:
  CpuDevice(std::shared_ptr<Context> context, int32_t progress);

  Result<std::shared_ptr<Stream>> create_stream(std::string name) override;
  Result<Stream*> from_abi(const alq_stream* stream) override;
  Result<std::shared_ptr<Event>> create_event() override;
  Status record(Event& event, Stream* stream) override;
  Status wait(Stream* stream, Event& event, Deadline deadline) override;
  bool done(const Event& event) const override;
  Status synchronize(Event& event, Deadline deadline) override;
  Status synchronize(Stream& stream, Deadline deadline) override;
  Status pin(Stream& stream, std::shared_ptr<void> object) override;
  Status launch(Stream* stream, kernels::OpCode op, const void* args,
                size_t args_bytes) override;
  Result<Progress> set_progress(int32_t want, Deadline deadline) override;
  Result<std::unique_ptr<Memory>> allocate(int64_t bytes,
                                           std::string label) override;
  Result<std::unique_ptr<Memory>> allocate_host(int64_t bytes,
                                                std::string label) override {
    return allocate(bytes, std::move(label));
  }
  bool asynchronous() const override { return false; }

  // For the groups of this rank.
  const std::shared_ptr<Runner>& runner() const { return runner_; }
  const std::shared_ptr<SegmentTable>& segments() const { return segments_; }

 private:
  // Waits until the queue has completed its operation `number`.
  Status wait_queue(Queue& queue, uint64_t number, Deadline deadline);
  Result<Progress> decide_progress(Deadline deadline);

  const std::shared_ptr<Context> context_;
  const int32_t progress_at_open_;
  std::optional<Progress> decided_;  // by AUTO, once
  std::mutex decided_mutex_;
  const std::shared_ptr<SegmentTable> segments_;
  const std::shared_ptr<Runner> runner_;
};

// A segment as Memory: in the table while it lives.  owned: this rank made it.
std::unique_ptr<Memory> segment_memory(std::shared_ptr<SegmentTable> table,
                                       std::shared_ptr<Segment> segment,
                                       bool owned);

// progress: ALQ_PROGRESS_*.  Refuses unknown values.
Result<std::shared_ptr<CpuDevice>> cpu_device(std::shared_ptr<Context> context,
                                              int32_t progress);

}  // namespace aliquot
