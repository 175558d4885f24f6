// What the files of the stand-in share: counts, faults, and the rules that hold
// for every call.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/doubles/nccl/comm.h"

#define NCCL_API extern "C" __attribute__((visibility("default")))

namespace aliquot::nccl_double {

// What a rank's swapped launch waits for.
struct Held {
  Comm* comm = nullptr;
  std::function<void()> go;
};

struct State {
  std::mutex mutex;  // guards what follows
  std::map<std::string, int64_t> counts;
  uint64_t ids = 0;
  int64_t alive = 0;
  int64_t fail_at = 0;
  int32_t fail_with = 0;
  int64_t swap_at = 0, swap_rank = -1;
  std::map<std::atomic<int32_t>*, Held> held;
};
State& state();

// Of a host thread: how deep it is in groups, and what it called in them.
struct ThreadState {
  int depth = 0;
  std::vector<CallOf> grouped;
  std::string error;
};
ThreadState& this_thread();

int64_t setting(const char* name, int64_t otherwise);
void count(const char* what);
// A violation; returns the result.
NcclResult refuse(const std::string& why, NcclResult result = kInvalidUsage);

// In NCCL for as long as it lives.
class Inside {
 public:
  explicit Inside(Comm& comm) : flag_(comm.inside) {
    if (flag_->fetch_add(1) != 0) {
      violation("two host threads are inside NCCL for one device");
    }
  }
  ~Inside() { flag_->fetch_sub(1); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  std::atomic<int32_t>* const flag_;
};

inline Comm* as_comm(CommHandle handle) {
  return reinterpret_cast<Comm*>(handle);
}
inline CommHandle as_handle(Comm* comm) {
  return reinterpret_cast<CommHandle>(comm);
}

// May this function be called on it now?
NcclResult usable(CommHandle handle, const char* function);

// Until success or an error, as a blocking communicator does it; a non-blocking
// one says that it is in progress.
NcclResult begin(Comm& comm, std::function<bool()> condition);

// Launches what the thread's group collected.
NcclResult end_group();

}  // namespace aliquot::nccl_double
