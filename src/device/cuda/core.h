// CudaCore: the primary context of one device, held for as long as anything of
// it lives: streams, events and memory may outlive the device object.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "device/cuda/driver.h"

namespace aliquot::cuda {

class CudaCore {
 public:
  // Retains the primary context.  INVALID_ARGUMENT: no such device.
  static Result<std::shared_ptr<CudaCore>> open(
      std::shared_ptr<const Driver> driver, int32_t ordinal);
  ~CudaCore();
  CudaCore(const CudaCore&) = delete;
  CudaCore& operator=(const CudaCore&) = delete;

  const Driver& api() const { return *driver_; }
  int32_t ordinal() const { return ordinal_; }
  CUdevice device() const { return device_; }
  CUcontext context() const { return context_; }
  // Of the library itself, for what has no stream; waits for no other.
  CUstream internal() const { return internal_; }

  // OK, or the error that ended the context.
  Status healthy() const;
  // A result as Status; remembers one that ended the context.
  Status check(CUresult result, const char* call);

  // Waits until the event has happened: a few polls at once, then naps that
  // grow to 1 ms.  what: for the error.
  Status wait(CUevent event, Deadline deadline, const char* what);
  // Waits for all that the stream has now.
  Status drain(CUstream stream, Deadline deadline, const char* what);
  // One poll; kNotReady while it has not.  Disturbs no capture.
  CUresult query(CUevent event) const;

  // Events to use once and give back.
  Result<CUevent> take_event();
  void give_event(CUevent event);

  // The capture that the stream is in, 0: none.  An error if that was spoilt.
  Result<uint64_t> capture(CUstream stream);

 private:
  CudaCore(std::shared_ptr<const Driver> driver, int32_t ordinal)
      : driver_(std::move(driver)), ordinal_(ordinal) {}

  const std::shared_ptr<const Driver> driver_;
  const int32_t ordinal_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream internal_ = nullptr;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;  // guards what follows
  Status failure_;
  std::vector<CUevent> spare_events_;
};

// The device's context is current within.
class ContextScope {
 public:
  explicit ContextScope(const CudaCore& core);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  Status status() const {
    return core_.api().error(result_, "cuCtxPushCurrent", core_.ordinal());
  }

 private:
  const CudaCore& core_;
  CUresult result_ = kSuccess;
  bool pushed_ = false;
};

// Calls within are no part of the calling thread's captures: polls of events
// that have nothing to do with them, and frees.
class OutsideCaptures {
 public:
  explicit OutsideCaptures(const Driver& api);
  ~OutsideCaptures();
  OutsideCaptures(const OutsideCaptures&) = delete;
  OutsideCaptures& operator=(const OutsideCaptures&) = delete;

 private:
  const Driver& api_;
  int mode_ = kCaptureModeRelaxed;
  bool changed_ = false;
};

}  // namespace aliquot::cuda
