#include "device/cpu/cpu_device.h"

#include <cstring>

namespace aliquot {
namespace {

class CpuEvent : public Event {
 public:
  struct Mark {
    std::shared_ptr<Queue> queue;  // null: done
    uint64_t number = 0;
  };
  Mark mark() const {
    std::lock_guard lock(mutex_);
    return mark_;
  }
  void set(Mark mark) {
    std::lock_guard lock(mutex_);
    mark_ = std::move(mark);
  }

 private:
  mutable std::mutex mutex_;
  Mark mark_;
};

class KernelOp : public Op {
 public:
  static constexpr size_t kArgsBytes = 256;
  KernelOp(kernels::OpCode op, const void* args, size_t bytes) : op_(op) {
    std::memcpy(args_, args, bytes);
  }
  Step step(bool) override {
    kernels::run_cpu(op_, args_);
    return Step::kDone;
  }

 private:
  const kernels::OpCode op_;
  alignas(64) std::byte args_[kArgsBytes] = {};
};

// Holds its stream back until another one has come to a place, and hands on
// the error found there.
class EventWaitOp : public Op {
 public:
  explicit EventWaitOp(CpuEvent::Mark mark) : mark_(std::move(mark)) {}
  Step step(bool) override {
    if (mark_.queue->completed() < mark_.number) return Step::kWaiting;
    status_ = mark_.queue->first_error(mark_.number, false);
    return status_.ok() ? Step::kDone : Step::kFailed;
  }
  Status status() const override { return status_; }

 private:
  const CpuEvent::Mark mark_;
  Status status_;
};

class SegmentMemory : public Memory {
 public:
  SegmentMemory(std::shared_ptr<SegmentTable> table,
                std::shared_ptr<Segment> segment, bool owned)
      : table_(std::move(table)) {
    data_ = segment->data();
    bytes_ = segment->bytes();
    table_->add(std::move(segment), owned);
  }
  ~SegmentMemory() override { table_->remove(data_); }

 private:
  const std::shared_ptr<SegmentTable> table_;
};

CpuEvent& cpu(Event& event) { return static_cast<CpuEvent&>(event); }
const CpuEvent& cpu(const Event& event) {
  return static_cast<const CpuEvent&>(event);
}

}  // namespace

CpuDevice::CpuDevice(std::shared_ptr<Context> context, int32_t progress)
    : context_(std::move(context)),
      progress_at_open_(progress),
      segments_(std::make_shared<SegmentTable>()),
      runner_(std::make_shared<Runner>(context_, progress)) {}

Result<std::shared_ptr<Stream>> CpuDevice::create_stream(std::string name) {
  return std::shared_ptr<Stream>(runner_->create_queue(std::move(name)));
}

Result<Stream*> CpuDevice::from_abi(const alq_stream* stream) {
  if (stream == nullptr) return static_cast<Stream*>(nullptr);
  if (stream->device_type != ALQ_DEVICE_CPU) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "stream of device type {} given to a CPU context; pass "
                      "one made by alq_stream_create, or NULL",
                      stream->device_type);
  }
  auto queue = runner_->find_queue(stream->handle);
  if (queue == nullptr) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "stream handle {} is not a live stream of this context; "
                      "pass one made by alq_stream_create, or NULL",
                      fmt::ptr(stream->handle));
  }
  return static_cast<Stream*>(queue.get());
}

Result<std::shared_ptr<Event>> CpuDevice::create_event() {
  return std::shared_ptr<Event>(std::make_shared<CpuEvent>());
}

Status CpuDevice::record(Event& event, Stream* stream) {
  if (stream == nullptr) {
    cpu(event).set({});
    return {};
  }
  auto queue = static_cast<Queue*>(stream)->shared_from_this();
  uint64_t number = queue->issued();
  cpu(event).set({std::move(queue), number});
  return {};
}

Status CpuDevice::wait(Stream* stream, Event& event, Deadline deadline) {
  if (stream == nullptr) return synchronize(event, deadline);
  CpuEvent::Mark mark = cpu(event).mark();
  if (mark.queue == nullptr) return {};
  auto* queue = static_cast<Queue*>(stream);
  // A stream is behind all its own operations anyway.
  if (mark.queue.get() == queue) return {};
  queue->enqueue<EventWaitOp>(std::move(mark));
  return {};
}

bool CpuDevice::done(const Event& event) const {
  CpuEvent::Mark mark = cpu(event).mark();
  return mark.queue == nullptr || mark.queue->completed() >= mark.number;
}

Status CpuDevice::synchronize(Event& event, Deadline deadline) {
  CpuEvent::Mark mark = cpu(event).mark();
  if (mark.queue == nullptr) return {};
  ALQ_TRY(wait_queue(*mark.queue, mark.number, deadline));
  return mark.queue->first_error(mark.number, false);
}

Status CpuDevice::synchronize(Stream& stream, Deadline deadline) {
  auto& queue = static_cast<Queue&>(stream);
  uint64_t number = queue.issued();
  ALQ_TRY(wait_queue(queue, number, deadline));
  return queue.first_error(number, true);
}

Status CpuDevice::wait_queue(Queue& queue, uint64_t number, Deadline deadline) {
  auto poll = [&](bool) {
    return queue.completed() >= number ? Step::kDone : Step::kWaiting;
  };
  int64_t start = now_ns();
  if (runner_->wait(Poll(poll), deadline)) return {};
  return make_error(ALQ_DEADLINE_EXCEEDED,
                    "stream \"{}\": {} of its operations are not done after "
                    "{} ms",
                    queue.name(), number - queue.completed(),
                    (now_ns() - start) / 1'000'000);
}

Status CpuDevice::pin(Stream& stream, std::shared_ptr<void> object) {
  Queue& queue = static_cast<Queue&>(stream);
  if (!queue.idle()) queue.enqueue<PinOp>(std::move(object));
  return {};
}

Status CpuDevice::launch(Stream* stream, kernels::OpCode op, const void* args,
                         size_t args_bytes) {
  if (args_bytes > KernelOp::kArgsBytes) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "kernel {}: {} bytes of arguments, at most {} are copied",
                      static_cast<int32_t>(op), args_bytes,
                      KernelOp::kArgsBytes);
  }
  if (stream == nullptr) {
    kernels::run_cpu(op, args);
  } else {
    static_cast<Queue*>(stream)->enqueue<KernelOp>(op, args, args_bytes);
  }
  return {};
}

Result<std::unique_ptr<Memory>> CpuDevice::allocate(int64_t bytes,
                                                    std::string label) {
  ALQ_ASSIGN(auto segment, Segment::create(bytes, label, true));
  return segment_memory(segments_, std::move(segment), true);
}

std::unique_ptr<Memory> segment_memory(std::shared_ptr<SegmentTable> table,
                                       std::shared_ptr<Segment> segment,
                                       bool owned) {
  return std::make_unique<SegmentMemory>(std::move(table), std::move(segment),
                                         owned);
}

}  // namespace aliquot
