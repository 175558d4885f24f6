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
  // Makes the device's context the calling thread's current one.
  virtual Status bind_thread() = 0;
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

}  // namespace aliquot
