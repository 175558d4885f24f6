#include "doubles/delayed/delayed_device.h"

#include <cstdlib>

#include "comm/mem/group.h"
#include "comm/mem/throttle.h"

namespace aliquot::test {
namespace {

unsigned first_seed() {
  const char* text = std::getenv("ALIQUOT_DOUBLE_SEED");
  return text == nullptr ? 1 : static_cast<unsigned>(std::atoi(text));
}

// The host's data goes in or out, or its views are prepared.
bool is_host_data(kernels::OpCode op) {
  return op == kernels::OpCode::kCopy || op == kernels::OpCode::kCast ||
         op == kernels::OpCode::kAccumulate || op == kernels::OpCode::kFill;
}

}  // namespace

std::atomic<bool> DelayedDevice::enabled{true};
std::atomic<unsigned> DelayedDevice::seed{first_seed()};

DelayedDevice::DelayedDevice(std::shared_ptr<Context> context)
    : CpuDevice(context, ALQ_PROGRESS_ON),
      ctx_(std::move(context)),
      random_(seed.load() * 1009 + static_cast<unsigned>(ctx_->rank)) {}

// An engine that makes its streams anew has left what failed on the host's.
Result<std::shared_ptr<Stream>> DelayedDevice::create_stream(std::string name) {
  if (host_stream_ != nullptr) {
    (void)CpuDevice::synchronize(*host_stream_, ctx_->deadline(0));
  }
  return CpuDevice::create_stream(std::move(name));
}

Result<Stream*> DelayedDevice::from_abi(const alq_stream* stream) {
  if (stream != nullptr) return CpuDevice::from_abi(stream);
  std::lock_guard lock(mutex_);
  if (host_stream_ == nullptr) {
    ALQ_ASSIGN(host_stream_, CpuDevice::create_stream("host"));
  }
  return host_stream_.get();
}

void DelayedDevice::delay(Stream* stream) {
  std::lock_guard lock(mutex_);
  unsigned dice = random_() % 16;
  if (dice < 10) return;
  int64_t ns = random_() % (dice == 15 ? 300'000 : 20'000);
  static_cast<Queue*>(stream)->enqueue<mem::HoldOp>(ns);
}

Status DelayedDevice::wait(Stream* stream, Event& event, Deadline deadline) {
  if (stream == nullptr) ++host_waits_;
  ALQ_TRY(CpuDevice::wait(stream, event, deadline));
  if (stream == nullptr || stream != host_stream_.get()) return {};
  return CpuDevice::synchronize(*stream, deadline);
}

Status DelayedDevice::synchronize(Event& event, Deadline deadline) {
  ++host_waits_;
  return CpuDevice::synchronize(event, deadline);
}

Status DelayedDevice::synchronize(Stream& stream, Deadline deadline) {
  ++host_waits_;
  return CpuDevice::synchronize(stream, deadline);
}

Status DelayedDevice::launch(Stream* stream, kernels::OpCode op,
                             const void* args, size_t args_bytes) {
  ++launches_;
  if (stream != nullptr) delay(stream);
  ALQ_TRY(CpuDevice::launch(stream, op, args, args_bytes));
  if (stream == nullptr || stream != host_stream_.get() || !is_host_data(op)) {
    return {};
  }
  return CpuDevice::synchronize(*stream, ctx_->deadline(0));
}

Result<Progress> DelayedDevice::set_progress(int32_t, Deadline) {
  return Progress{true, -1, 0, "a device that runs by itself"};
}

}  // namespace aliquot::test

namespace aliquot {

Result<std::shared_ptr<CpuDevice>> cpu_device(std::shared_ptr<Context> context,
                                              int32_t) {
  if (!test::DelayedDevice::enabled) {
    return std::make_shared<CpuDevice>(std::move(context), ALQ_PROGRESS_OFF);
  }
  return std::shared_ptr<CpuDevice>(
      std::make_shared<test::DelayedDevice>(std::move(context)));
}

namespace mem {

Abilities MemGroup::abilities() const { return {true, false, false}; }

}  // namespace mem
}  // namespace aliquot
