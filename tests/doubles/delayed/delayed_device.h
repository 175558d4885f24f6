// An asynchronous device made of the CPU: streams run by themselves, on the
// rank's progress thread, each operation after a random delay, so that whatever
// is not ordered by events or read too early comes out wrong.  Linked before
// the library's own objects it takes the CPU device's place, with groups that
// leave the norm and the search for bad gradients to the engine.
//
// The null stream of the ABI is a stream of the context here.  A host that uses
// it computes by itself between the calls, so what it is lent is there on
// return, and what it passes in is consumed; what a step enqueues is not waited
// for.
#pragma once

#include <atomic>
#include <random>

#include "device/cpu/cpu_device.h"

namespace aliquot::test {

class DelayedDevice : public CpuDevice {
 public:
  explicit DelayedDevice(std::shared_ptr<Context> context);

  Result<std::shared_ptr<Stream>> create_stream(std::string name) override;
  Result<Stream*> from_abi(const alq_stream* stream) override;
  Status wait(Stream* stream, Event& event, Deadline deadline) override;
  Status synchronize(Event& event, Deadline deadline) override;
  Status synchronize(Stream& stream, Deadline deadline) override;
  Status launch(Stream* stream, kernels::OpCode op, const void* args,
                size_t args_bytes) override;
  Result<Progress> set_progress(int32_t want, Deadline deadline) override;
  bool asynchronous() const override { return true; }

  // Of devices opened from now on: false gives the plain CPU.
  static std::atomic<bool> enabled;
  static std::atomic<unsigned> seed;

  // How often the host has waited, and launched.
  int64_t host_waits() const { return host_waits_.load(); }
  int64_t launches() const { return launches_.load(); }

 private:
  void delay(Stream* stream);

  const std::shared_ptr<Context> ctx_;
  std::shared_ptr<Stream> host_stream_;  // the ABI's null stream
  std::mutex mutex_;
  std::mt19937 random_;
  std::atomic<int64_t> host_waits_{0}, launches_{0};
};

}  // namespace aliquot::test
