// Streams and events of a CUDA device.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "device/cuda/core.h"
#include "device/device.h"

namespace aliquot::cuda {

class CudaStream : public Stream {
 public:
  CudaStream(std::shared_ptr<CudaCore> core, CUstream stream, bool owned,
             std::string label)
      : handle(stream),
        name(std::move(label)),
        core_(std::move(core)),
        owned_(owned) {}
  ~CudaStream() override {
    if (!owned_) return;
    ContextScope scope(*core_);
    core_->api().stream_destroy(handle);  // what it holds is still done
  }

  const CUstream handle;
  const std::string name;

 private:
  const std::shared_ptr<CudaCore> core_;
  const bool owned_;
};

class CudaEvent : public Event {
 public:
  CudaEvent(std::shared_ptr<CudaCore> core, CUevent event)
      : handle(event), core_(std::move(core)) {}
  ~CudaEvent() override {
    ContextScope scope(*core_);
    core_->api().event_destroy(handle);
  }

  const CUevent handle;
  std::atomic<bool> recorded{false};
  std::atomic<uint64_t> capture{0};  // that it was recorded in

 private:
  const std::shared_ptr<CudaCore> core_;
};

inline CUstream handle_of(Stream& stream) {
  return static_cast<CudaStream&>(stream).handle;
}
inline CudaEvent& cuda_event(Event& event) {
  return static_cast<CudaEvent&>(event);
}

}  // namespace aliquot::cuda
