// A CUDA device as a Device: the caller's streams and own non-blocking ones,
// events without timing, kernels of kernels/cuda.
//
// record, wait and launch allocate nothing, wait for nothing and never touch a
// default stream, so that what calls them can be captured into a graph.  A null
// Stream* runs on a stream of the device's own and is done on return.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "base/context.h"
#include "base/json.h"
#include "device/cuda/core.h"
#include "device/cuda/kernel_table.h"
#include "device/cuda/pins.h"
#include "device/cuda/port.h"
#include "device/device.h"

namespace aliquot {

class CudaDevice : public Device, public CudaPort {
 public:
  // Loads the driver and the kernels.  UNAVAILABLE says what is missing,
  // INVALID_ARGUMENT that there is no such device.
  static Result<std::shared_ptr<CudaDevice>> open(
      std::shared_ptr<Context> context, int32_t ordinal);
  ~CudaDevice() override;

  // Device
  Result<std::shared_ptr<Stream>> create_stream(std::string name) override;
  Result<Stream*> from_abi(const alq_stream* stream) override;
  Result<std::shared_ptr<Event>> create_event() override;
  Status record(Event& event, Stream* stream) override;
  Status wait(Stream* stream, Event& event, Deadline deadline) override;
  bool done(const Event& event) const override;
  Status synchronize(Event& event, Deadline deadline) override;
  Status synchronize(Stream& stream, Deadline deadline) override;
  Status check_waitable(Stream& stream) override;
  Status pin(Stream& stream, std::shared_ptr<void> object) override;
  Status launch(Stream* stream, kernels::OpCode op, const void* args,
                size_t args_bytes) override;
  Result<Progress> set_progress(int32_t want, Deadline deadline) override;
  Result<std::unique_ptr<Memory>> allocate(int64_t bytes,
                                           std::string label) override;
  Result<std::unique_ptr<Memory>> allocate_host(int64_t bytes,
                                                std::string label) override;
  bool asynchronous() const override { return true; }

  // CudaPort
  void* native(Stream& stream) override;
  Stream& internal_stream() override { return *internal_; }
  Result<bool> bind_thread() override;
  void unbind_thread() override;
  Status healthy() const override { return core_->healthy(); }
  Result<uint64_t> identity(Stream& stream) override;
  Result<uint64_t> capture(Stream& stream) override;
  bool visible(const void* address) override;
  LibrarySet& libraries() override { return context_->libraries; }
  std::vector<std::string> library_dirs() override {
    return context_->library_dirs;
  }

  int32_t ordinal() const { return core_->ordinal(); }
  // Card, driver and kernels, for alq_runtime_info.
  Json info() const;
  // Lets go of what captured graphs may use: no graph is launched any more.
  void close() { pins_->drop_captured(); }

 private:
  CudaDevice(std::shared_ptr<Context> context,
             std::shared_ptr<cuda::CudaCore> core);
  // The kernel's launch; a copy by the copy engines.
  Status run(cuda::CUstream stream, kernels::OpCode op, const void* args,
             size_t args_bytes);
  Status copy(cuda::CUstream stream, const kernels::CopyArgs& args);
  // How far the host's monotonic clock is ahead of the card's.
  Status measure_clock();
  // The event was recorded outside of the capture that is going to wait.
  Status wait_outside(cuda::CUevent event, Deadline deadline);

  const std::shared_ptr<Context> context_;
  const std::shared_ptr<cuda::CudaCore> core_;
  const std::shared_ptr<cuda::Pins> pins_;
  std::unique_ptr<cuda::KernelTable> kernels_;
  std::string image_;  // what the kernels are from
  int32_t multiprocessors_ = 1;
  int64_t clock_offset_ = 0;  // of stamps
  std::shared_ptr<Stream> internal_;
  std::mutex mutex_;
  // The caller's, by handle; as many as the caller uses.
  std::unordered_map<void*, std::shared_ptr<Stream>> callers_;
};

}  // namespace aliquot
