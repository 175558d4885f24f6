// Counts, faults and answers that concern no communicator, and what the
// driver's stand-in does for this one.
#include "tests/doubles/nccl/state.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/doubles/nccl/double.h"

namespace aliquot::nccl_double {

State& state() {
  static State state;
  return state;
}

ThreadState& this_thread() {
  thread_local ThreadState state;
  return state;
}

int64_t setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

void count(const char* what) {
  std::lock_guard lock(state().mutex);
  ++state().counts[what];
}

NcclResult refuse(const std::string& why, NcclResult result) {
  this_thread().error = why;
  violation(why);
  return result;
}

NcclResult usable(CommHandle handle, const char* function) {
  Comm* comm = as_comm(handle);
  if (comm == nullptr) {
    return refuse(std::string(function) + ": null communicator",
                  kInvalidArgument);
  }
  if (comm->magic != kLive) {
    return refuse(std::string(function) +
                  ": the communicator was destroyed or aborted");
  }
  if (comm->error.load() != kSuccess) {
    return static_cast<NcclResult>(comm->error.load());
  }
  if (comm->pending) {
    return refuse(std::string(function) +
                  " while the communicator is in progress");
  }
  return kSuccess;
}

NcclResult begin(Comm& comm, std::function<bool()> condition) {
  comm.extra_polls = static_cast<int32_t>(++state().ids % 3);
  comm.pending = std::move(condition);
  if (!comm.blocking) return kInProgress;
  while (comm.pending && !comm.pending()) usleep(50);
  comm.pending = nullptr;
  return static_cast<NcclResult>(comm.error.load());
}

void violation(const std::string& text) {
  using Function = void (*)(const char*);
  static auto report = reinterpret_cast<Function>(dlsym(
      dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW), "double_violation"));
  if (report != nullptr) {
    report(text.c_str());
  } else {
    std::fprintf(stderr, "double: violation: %s\n", text.c_str());
  }
}

int enqueue(RawStream stream, void (*run)(void*), void (*drop)(void*),
            void* argument) {
  using Function = int (*)(RawStream, void (*)(void*), void (*)(void*), void*);
  static auto put = reinterpret_cast<Function>(dlsym(
      dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW), "double_enqueue_held"));
  return put == nullptr ? 1 : put(stream, run, drop, argument);
}

bool capturing(RawStream stream) {
  using Function = int (*)(RawStream, int*);
  static auto ask = reinterpret_cast<Function>(dlsym(
      dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW), "cuStreamIsCapturing"));
  int status = 0;
  return ask != nullptr && ask(stream, &status) == 0 && status != 0;
}

}  // namespace aliquot::nccl_double

using namespace aliquot::nccl_double;

NCCL_API int64_t double_nccl_count(const char* what) {
  std::lock_guard lock(state().mutex);
  return state().counts[what];
}
NCCL_API void double_nccl_reset_counts() {
  std::lock_guard lock(state().mutex);
  state().counts.clear();
}
NCCL_API int64_t double_nccl_alive() {
  std::lock_guard lock(state().mutex);
  return state().alive;
}
NCCL_API void double_nccl_fail(int64_t launch, int32_t result) {
  std::lock_guard lock(state().mutex);
  state().fail_at = launch;
  state().fail_with = result;
}
NCCL_API void double_nccl_swap(int64_t launch, int32_t rank) {
  std::lock_guard lock(state().mutex);
  state().swap_at = launch;
  state().swap_rank = rank;
}

NCCL_API NcclResult ncclGetVersion(int* version) {
  *version = static_cast<int>(setting("ALIQUOT_DOUBLE_NCCL_VERSION", 23007));
  return kSuccess;
}

NCCL_API const char* ncclGetErrorString(NcclResult result) {
  switch (result) {
    case kSuccess: return "no error";
    case kUnhandledCudaError: return "unhandled cuda error";
    case kSystemError: return "unhandled system error";
    case kInternalError: return "internal error";
    case kInvalidArgument: return "invalid argument";
    case kInvalidUsage: return "invalid usage";
    case kRemoteError:
      return "remote process exited or there was a network error";
    case kInProgress: return "NCCL operation in progress";
  }
  return "unknown result code";
}

NCCL_API const char* ncclGetLastError(CommHandle handle) {
  Comm* comm = as_comm(handle);
  return comm != nullptr && !comm->last_error.empty()
             ? comm->last_error.c_str()
             : this_thread().error.c_str();
}
