// A communicator of the stand-in, as one rank sees it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/nccl/abi.h"
#include "tests/doubles/nccl/shared.h"

namespace aliquot::nccl {

struct NcclCommOpaque;

}  // namespace aliquot::nccl

namespace aliquot::nccl_double {

using namespace aliquot::nccl;  // the library's types and values

struct Comm;

// One call of a collective, or of send (kind kSendCall) and recv.
enum CallKind : int32_t {
  kAllReduceCall,
  kReduceCall,
  kBroadcastCall,
  kReduceScatterCall,
  kAllGatherCall,
  kSendCall,
  kRecvCall,
};
struct CallOf {
  Comm* comm = nullptr;
  RawStream stream = nullptr;
  CallKind kind = kAllReduceCall;
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  uint64_t count = 0;
  NcclType type = kUint8;
  NcclOp op = kSum;
  bool scaled = false;
  double scalar = 1;
  int32_t root = 0;
};

// What one launch does: calls of one group on one communicator and stream.
struct Launch {
  Comm* comm = nullptr;
  std::vector<CallOf> calls;
  bool captured = false;  // runs as often as its graph
};

struct PremulOp {
  bool live = false;
  NcclType type = kFloat32;
  double scalar = 1;
};

constexpr uint64_t kLive = 0x616c6976656e6363, kDead = 0x646561646e636363;

// Never freed, so that a handle used too late is noticed.
struct Comm {
  uint64_t magic = kLive;
  std::string name;  // of its shared memory
  Shared* shared = nullptr;
  int32_t rank = 0, size = 0;
  bool blocking = false;
  std::vector<int32_t> root_ranks;  // in the family's first communicator
  Shared* family = nullptr;
  uint64_t uid = 0;                         // the same on all ranks
  std::atomic<int32_t>* inside = nullptr;   // host threads, per rank and family
  std::atomic<int32_t>* working = nullptr;  // launches that run, likewise

  // What must happen before the state is "success" again; true: it did.
  std::function<bool()> pending;
  int32_t extra_polls = 0;
  std::atomic<int32_t> error{kSuccess};
  std::string last_error;
  std::atomic<bool> aborted{false};
  bool finalized = false;

  uint64_t splits = 0;
  uint64_t issued = 0;                 // launches
  std::atomic<uint64_t> completed{0};  // launches
  std::atomic<int32_t> running{0};
  std::atomic<int32_t> in_graphs{0};     // launches that a graph may run again
  uint64_t collectives = 0, rounds = 0;  // on the stream's thread
  std::vector<PremulOp> ops;

  Slot& slot(int32_t q) const { return shared->slots[q]; }
  void fail(NcclResult result, const std::string& why) {
    last_error = why;
    error.store(result);
  }
};

// Runs on a stream's thread.
void run_launch(Launch& launch);

// Reported where the stand-in for the driver counts them.
void violation(const std::string& text);
// Puts it on the stream; drop: when it can run no more.
int enqueue(RawStream stream, void (*run)(void*), void (*drop)(void*),
            void* argument);
bool capturing(RawStream stream);

// ---- arithmetic
size_t type_size(NcclType type);
// to = sum (min, max, ...) over ranks' bytes, linearly, in the type itself.
void combine(std::byte* to, const std::byte* const* from, int ranks,
             uint64_t count, NcclType type, NcclOp op);
void scale(std::byte* data, uint64_t count, NcclType type, double factor);

}  // namespace aliquot::nccl_double
