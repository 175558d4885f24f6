// Runtime: what all communicators of one device share.
//
//   order     one host thread at a time is inside NCCL for a device, and calls
//             of all communicators are issued in one order
//   chain     before NCCL orders launches itself (NCCL_LAUNCH_ORDER_IMPLICIT,
//             2.26), an operation waits on the device for the one issued before
//             it, on whatever communicator: two that wait for each other's
//             multiprocessors on two devices would never end
//   watchdog  one thread that asks every group what went wrong, and ends
//             communicators that nobody uses any more
//   aborts    on threads of their own, for ncclCommAbort may block
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/context.h"
#include "comm/nccl/api.h"
#include "device/cuda/port.h"

namespace aliquot::nccl {

// OK while it is worth waiting.
using Stop = std::function<Status()>;

// Sleeps a little longer each time, 20 us to 1 ms, after a few yields.
class Naps {
 public:
  void take();
  int64_t sleeps() const { return sleeps_; }

 private:
  int64_t count_ = 0, sleeps_ = 0;
};

class Watched {
 public:
  virtual ~Watched() = default;
  virtual void tick() = 0;  // on the watchdog's thread; must not block
};

class Runtime {
 public:
  static Result<std::shared_ptr<Runtime>> of(
      const std::shared_ptr<Context>& context,
      const std::shared_ptr<Device>& device);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const Api api;
  const std::shared_ptr<Context> context;
  const std::shared_ptr<Device> device;
  CudaPort& port;
  const bool chains;  // see above

  using Lock = std::unique_lock<std::mutex>;
  // The order, or why it took too long.
  Result<Lock> lock(Deadline deadline, const Stop& stop);
  Lock try_lock() { return Lock(shared_->order, std::try_to_lock); }

  // The last operation of the device, under the order.
  struct Last {
    const void* group = nullptr;
    std::shared_ptr<Event> event;
    uint64_t stream = 0;  // its identity
    uint64_t capture = 0;
  };
  Last last;

  // ---- communicators; all under the order, all bounded
  Result<CommHandle> init(const UniqueId& id, int32_t rank, int32_t size,
                          Deadline deadline, const Stop& stop);
  // Null for no color.
  Result<CommHandle> split(CommHandle parent, int32_t color, int32_t key,
                           Deadline deadline, const Stop& stop);
  // Until the communicator is done with what it was told.
  Status settle(const char* what, NcclResult result, CommHandle comm,
                Deadline deadline, const Stop& stop);
  Status finish(CommHandle comm, Deadline deadline, const Stop& stop);
  Status error(const char* what, NcclResult result, CommHandle comm) const;

  // Ends it at once on a thread of its own.
  void abort(CommHandle comm);
  // Waits for the aborts under way; false: some still block.
  bool aborts_done(Deadline deadline) const;
  // Ends it when the event has happened and the peers are ready, or aborts it.
  void bury(CommHandle comm, std::shared_ptr<Event> after);

  void watch(Watched* group);
  void unwatch(Watched* group);

 private:
  // Outlives the runtime while an abort blocks.
  struct Shared {
    std::mutex order;
    std::atomic<int32_t> aborting{0};
  };
  struct Grave {
    CommHandle comm;
    std::shared_ptr<Event> after;
    int64_t give_up_at;
    bool finalizing = false;
  };

  Runtime(Api api, std::shared_ptr<Context> context,
          std::shared_ptr<Device> device, CudaPort& port);
  void run_watchdog();
  // One step of ending it; true: it is gone.
  bool dig(Grave& grave);
  void dig_all();

  const std::shared_ptr<Shared> shared_;
  const uint64_t stamp_;
  std::mutex watched_mutex_;  // held during ticks
  std::vector<Watched*> watched_;
  std::mutex graves_mutex_;
  std::vector<Grave> graves_;
  std::atomic<bool> stop_{false};
  std::thread watchdog_;
};

}  // namespace aliquot::nccl
