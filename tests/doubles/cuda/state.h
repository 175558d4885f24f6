// The stand-in's one state: devices, contexts, counts, faults.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device/cuda/abi.h"
#include "tests/doubles/cuda/double.h"

namespace aliquot::cuda_double {

using namespace aliquot::cuda;  // the driver's types and results

// Also CUctx_st: one primary context per device.
struct ContextImpl {
  int device = 0;
  int retained = 0;
  int streams = 0;          // created so far
  int events_since = 0;     // created since the last stream was
  int engine_streams = -1;  // `streams` when the engine had made its own
  int bundles = 0;
  std::atomic<CUresult> sticky{kSuccess};
  std::atomic<int64_t> items{0};  // of its streams, that have not run
};

// A fault asked for by double_mutate.
struct Mutation {
  std::string name, kernel;
  std::string site;  // of waits and records: only there
  int64_t at = 0;    // which occurrence; 0: all
  int64_t seen = 0;  // occurrences so far
};

struct InjectedFailure {
  std::string entry;
  CUresult result = kSuccess;
  bool sticky = false;
  int64_t at = 1;  // which of the calls from now on
};

struct State {
  std::recursive_mutex mutex;  // guards what is not atomic, and all objects
  std::vector<ContextImpl*> contexts;
  bool initialized = false;

  std::atomic<uint64_t> seed{1};
  std::atomic<int64_t> delay_us{200};
  std::atomic<bool> step{false};
  std::atomic<bool> default_streams{false}, free_waits{false};
  std::atomic<int> violations{0};

  std::map<std::string, int64_t> counts;
  Mutation mutation;
  bool notes_sites = false;
  std::map<std::string, int64_t> sites;  // calls from each
  int64_t mutated = 0;
  std::vector<InjectedFailure> failures;
  int64_t modules = 0;  // loaded
};

// Never destroyed: stream threads may outlive main.
State& state();

using Lock = std::lock_guard<std::recursive_mutex>;

void count(const char* what);
[[gnu::format(printf, 1, 2)]] void violation(const char* format, ...);

// Is this the occurrence that the fault `name` asks for?  kernel: of a launch;
// site: of a wait or record.
bool mutate(const char* name, const char* kernel = nullptr,
            const std::string& site = {});
// The failure asked for at this entry point, or kSuccess; null context: none
// to make sticky.
CUresult injected(const char* entry, ContextImpl* context);

// The calling thread's current context, or null.
ContextImpl* current_context();
void push_context(ContextImpl* context);
ContextImpl* pop_context();
int& thread_capture_mode();

inline ContextImpl* impl(CUcontext c) {
  return reinterpret_cast<ContextImpl*>(c);
}
inline CUcontext handle(ContextImpl* c) {
  return reinterpret_cast<CUcontext>(c);
}

}  // namespace aliquot::cuda_double

// A driver entry point.
#define DOUBLE_API extern "C" __attribute__((visibility("default")))
