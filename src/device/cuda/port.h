// What NCCL and cuBLAS need of a CUDA device beyond Device.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "base/dynlib.h"
#include "device/device.h"

namespace aliquot {

class CudaPort {
 public:
  virtual ~CudaPort() = default;

  // The CUstream behind a stream.
  virtual void* native(Stream& stream) = 0;
  // The device's own stream, on which calls with a null Stream* run.
  virtual Stream& internal_stream() = 0;
  // Makes the device's context the calling thread's current one.  True: it was
  // not, and unbind_thread gives the thread its own back.  See CudaBound.
  virtual Result<bool> bind_thread() = 0;
  virtual void unbind_thread() = 0;
  // OK, or the error that ended the device's context.
  virtual Status healthy() const = 0;
  // Of no other stream of the process, ever: handles come back, and that of the
  // per-thread default stream is another stream for each thread.
  virtual Result<uint64_t> identity(Stream& stream) = 0;
  // 0: the stream is not being captured; else the number of the capture.
  virtual Result<uint64_t> capture(Stream& stream) = 0;
  // Whether kernels can use the address: device, pinned or managed memory.
  virtual bool visible(const void* address) = 0;
  // Where libraries are looked for and recorded, beside the system's places.
  virtual LibrarySet& libraries() = 0;
  virtual std::vector<std::string> library_dirs() = 0;

  // What all communicators of the device share; its type is known to
  // comm/nccl.
  std::mutex shared_mutex;
  std::weak_ptr<void> shared;
};

// The device's context is current within; the caller's is again afterwards.
class CudaBound {
 public:
  explicit CudaBound(CudaPort& port)
      : port_(port), pushed_(port.bind_thread()) {}
  ~CudaBound() {
    if (pushed_.ok() && *pushed_) port_.unbind_thread();
  }
  CudaBound(const CudaBound&) = delete;
  CudaBound& operator=(const CudaBound&) = delete;
  Status status() const { return pushed_.status(); }

 private:
  CudaPort& port_;
  Result<bool> pushed_;
};

}  // namespace aliquot
