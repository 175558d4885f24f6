// Objects that live until a stream has done what it had when they were pinned.
//
// The driver's host callbacks may call nothing of the driver, and objects free
// device memory; so one thread polls their events, and ends when none is left.
#pragma once

#include <list>
#include <memory>
#include <mutex>

#include "device/cuda/core.h"

namespace aliquot::cuda {

class Pins : public std::enable_shared_from_this<Pins> {
 public:
  explicit Pins(std::shared_ptr<CudaCore> core) : core_(std::move(core)) {}
  ~Pins();

  // capture not 0: the stream is being captured, and the graph may be launched
  // at any time later: kept until drop_captured.
  Status add(CUstream stream, uint64_t capture, std::shared_ptr<void> object);
  void drop_captured();

 private:
  struct Pin {
    CUevent event;
    std::shared_ptr<void> object;
  };
  static void run(std::shared_ptr<Pins> self);
  // Lets go of what is done; false: none is left, and the thread ends.
  bool release_done();

  const std::shared_ptr<CudaCore> core_;
  std::mutex mutex_;
  std::list<Pin> pins_;
  std::list<std::shared_ptr<void>> captured_;
  bool running_ = false;
};

}  // namespace aliquot::cuda
