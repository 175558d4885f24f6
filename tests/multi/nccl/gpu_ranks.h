// Ranks with a CUDA device and a group of NCCL each, over the stand-ins.
//
// Each way of running them is a process of its own, so that nothing a stand-in
// started is there when the next ranks are forked.  A rank fails if it made the
// stand-ins report a violation.
#pragma once

#include <functional>
#include <string>

#include "comm/nccl/group.h"
#include "device/cuda/cuda_device.h"
#include "multi/comm/reference.h"
#include "support/ranks.h"
#include "tests/doubles/cuda/double.h"
#include "tests/doubles/nccl/double.h"

namespace aliquot::test {

// A function of a stand-in that the ranks loaded.
void* double_symbol(const char* library, const char* name);
#define ALQ_DOUBLE(library, name) \
  reinterpret_cast<decltype(&name)>(double_symbol(library, #name))

class Gpu {
 public:
  std::shared_ptr<CudaDevice> device;
  std::shared_ptr<Group> group;  // the world
  std::shared_ptr<Stream> stream;

  // A new stream each time.
  std::shared_ptr<Stream> make_stream(Rank& rank);
};

// Device memory that the host fills and reads through copies.
class GpuBytes {
 public:
  GpuBytes(Rank& rank, Gpu& gpu, int64_t bytes);
  std::byte* data() const { return memory_ ? memory_->data() : nullptr; }
  void set(const Buffer& from, int64_t at = 0);
  // After all that is on the stream.
  Buffer get(Stream* stream, int64_t at, int64_t bytes);

 private:
  Rank& rank_;
  Gpu& gpu_;
  std::unique_ptr<Memory> memory_;
};

struct GpuOptions {
  RanksOptions ranks;
  bool violations_are_fine = false;
  bool ends_badly = false;  // some rank is killed: its outcome is not judged
  int64_t delay_us = 100;
  std::vector<std::pair<std::string, std::string>> environment = {};
};

// Opens the device and, if group, the group.
Status open_gpu(Rank& rank, Gpu& gpu, bool group = true);

// "" or what went wrong.
std::string run_gpu(const GpuOptions& options,
                    const std::function<void(Rank&, Gpu&)>& body);

// As threads and as processes.
void gpu_everywhere(const std::vector<int32_t>& sizes,
                    const std::function<void(Rank&, Gpu&)>& body,
                    GpuOptions options = {});

}  // namespace aliquot::test
