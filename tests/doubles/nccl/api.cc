// The stand-in's libnccl.so.2: NCCL's functions and its rules.
//
// Non-blocking communicators answer "in progress" for a few polls after every
// call, and what was called takes effect only then.  Ranks must issue what
// concerns two of them in the same order, on all communicators of a family, and
// run them one after the other unless NCCL_LAUNCH_ORDER_IMPLICIT is 1;
// one host thread at a time may be inside for a rank.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "tests/doubles/nccl/comm.h"
#include "tests/doubles/nccl/double.h"

#define NCCL_API extern "C" __attribute__((visibility("default")))

namespace aliquot::nccl_double {
namespace {

int64_t setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

std::mutex mutex;  // guards what follows
std::map<std::string, int64_t> counts;
uint64_t ids = 0;
int64_t alive = 0;
int64_t fail_at = 0;
int32_t fail_with = 0;
int64_t swap_at = 0, swap_rank = -1;

// What a rank's swapped launch waits for.
struct Held {
  Comm* comm = nullptr;
  std::function<void()> go;
};
std::map<std::atomic<int32_t>*, Held> held;

void count(const char* what) {
  std::lock_guard lock(mutex);
  ++counts[what];
}

thread_local int depth = 0;
thread_local std::vector<CallOf> grouped;
thread_local std::string thread_error;

NcclResult refuse(const std::string& why, NcclResult result = kInvalidUsage) {
  thread_error = why;
  violation(why);
  return result;
}

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

Comm* as_comm(CommHandle handle) { return reinterpret_cast<Comm*>(handle); }
CommHandle as_handle(Comm* comm) { return reinterpret_cast<CommHandle>(comm); }

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

// Until success or an error, as a blocking communicator does it; a non-blocking
// one says that it is in progress.
NcclResult begin(Comm& comm, std::function<bool()> condition) {
  comm.extra_polls = static_cast<int32_t>(++ids % 3);
  comm.pending = std::move(condition);
  if (!comm.blocking) return kInProgress;
  while (comm.pending && !comm.pending()) usleep(50);
  comm.pending = nullptr;
  return static_cast<NcclResult>(comm.error.load());
}

void log_order(Comm& comm, uint64_t number) {
  const uint64_t item = (comm.uid ^ number * 0x9e3779b97f4a7c15) | 1;
  const int32_t me = comm.root_ranks[static_cast<size_t>(comm.rank)];
  for (int32_t other : comm.root_ranks) {
    if (other == me) continue;
    OrderLog& mine = comm.family->logs[me][other];
    OrderLog& theirs = comm.family->logs[other][me];
    uint64_t k = mine.count.load();
    mine.items[k % kLog].store(item);
    mine.count.store(k + 1);
    uint64_t n = theirs.count.load();
    if (k >= n || n - k > kLog / 2) continue;
    if (theirs.items[k % kLog].load() == item) continue;
    violation("ranks " + std::to_string(me) + " and " + std::to_string(other) +
              " issued operations on their communicators in different order; "
              "rank " +
              std::to_string(me) + " comes to " + comm.name + " first");
  }
}

void enqueue_on_stream(void* argument) {
  run_launch(*static_cast<Launch*>(argument));
}

// Puts what a group collected on the stream of each communicator.
void launch_now(Launch* launch, RawStream stream) {
  Comm& comm = *launch->comm;
  log_order(comm, comm.issued);
  bool injected = false;
  {
    std::lock_guard lock(mutex);
    injected = fail_at > 0 && --fail_at == 0;
  }
  if (injected) {
    comm.fail(static_cast<NcclResult>(fail_with), "a failure asked for");
  }
  launch->captured = capturing(stream);
  if (!launch->captured) ++comm.issued;
  enqueue(stream, enqueue_on_stream, launch);
}

// The fault "communicators in another order": holds a launch back until this
// rank has launched on another communicator.
bool hold_back(Launch* launch, RawStream stream) {
  Comm& comm = *launch->comm;
  std::unique_lock lock(mutex);
  if (swap_at <= 0 ||
      comm.root_ranks[static_cast<size_t>(comm.rank)] != swap_rank) {
    return false;
  }
  if (--swap_at != 0) return false;
  held[comm.inside] = {&comm, [launch, stream] { launch_now(launch, stream); }};
  return true;
}

void release_held(Comm& comm) {
  std::function<void()> go;
  {
    std::lock_guard lock(mutex);
    auto it = held.find(comm.inside);
    if (it == held.end()) return;
    go = std::move(it->second.go);
    held.erase(it);
  }
  go();
}

NcclResult end_group() {
  std::vector<Launch*> launches;
  std::vector<RawStream> streams;
  for (CallOf& call : grouped) {
    Launch* into = nullptr;
    for (size_t i = 0; i < launches.size(); ++i) {
      if (launches[i]->comm != call.comm) continue;
      into = launches[i];
      if (streams[i] != call.stream) {
        grouped.clear();
        return refuse("a group uses two streams for one communicator");
      }
    }
    if (into == nullptr) {
      into =
          new Launch{call.comm, {}, false};  // a graph may run it at any time
      launches.push_back(into);
      streams.push_back(call.stream);
    }
    into->calls.push_back(call);
  }
  grouped.clear();
  NcclResult result = kSuccess;
  for (size_t i = 0; i < launches.size(); ++i) {
    Launch* launch = launches[i];
    RawStream stream = streams[i];
    count("launch");
    NcclResult begun = begin(*launch->comm, [launch, stream] {
      if (hold_back(launch, stream)) return true;
      launch_now(launch, stream);
      release_held(*launch->comm);
      return true;
    });
    if (begun != kSuccess) result = begun;
  }
  return result;
}

NcclResult add(const CallOf& call, const char* function) {
  count("call");
  NcclResult result = usable(as_handle(call.comm), function);
  if (result != kSuccess) return result;
  Inside inside(*call.comm);
  if (call.stream == nullptr) {
    return refuse(std::string(function) + " on the legacy default stream");
  }
  bool rooted = call.kind == kReduceCall || call.kind == kBroadcastCall ||
                call.kind == kSendCall || call.kind == kRecvCall;
  if (rooted && (call.root < 0 || call.root >= call.comm->size)) {
    return refuse(std::string(function) + ": no such root or peer",
                  kInvalidArgument);
  }
  if (call.count == 0) {
    return refuse(std::string(function) + " of no elements");
  }
  grouped.push_back(call);
  return depth > 0 ? kSuccess : end_group();
}

// Fills in a premultiplied operation.
NcclResult with_op(CallOf& call, NcclOp op) {
  call.op = op;
  if (op <= kAvg) return kSuccess;
  size_t index = static_cast<size_t>(op) - 5;
  Comm& comm = *call.comm;
  if (index >= comm.ops.size() || !comm.ops[index].live ||
      comm.ops[index].type != call.type) {
    return refuse("an operation that does not exist for this type",
                  kInvalidArgument);
  }
  call.op = kSum;
  call.scaled = true;
  call.scalar = comm.ops[index].scalar;
  return kSuccess;
}

std::string name_of(const UniqueId& id) { return std::string(id.bytes); }

uint64_t hash_of(const std::string& text) {
  uint64_t h = 1469598103934665603u;
  for (char c : text) {
    h = (h ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  return h;
}

NcclResult check_config(const Config* config, Comm& comm) {
  comm.blocking = true;
  if (config == nullptr) return kSuccess;
  if (config->magic != kConfigMagic || config->size < 24 ||
      config->version < 21400) {
    return refuse("ncclConfig_t is not initialised", kInvalidArgument);
  }
  // In this version the field at 44 is the traffic class.
  if (config->size >= 48 && config->later != kUndefined) {
    return refuse("ncclConfig_t: traffic class set by padding",
                  kInvalidArgument);
  }
  comm.blocking = config->blocking != 0;
  return kSuccess;
}

Comm* new_comm() {
  std::lock_guard lock(mutex);
  if (alive >= setting("ALIQUOT_DOUBLE_NCCL_COMMS", 256)) return nullptr;
  ++alive;
  return new Comm();
}

void bury(Comm* comm) {
  comm->magic = kDead;
  comm->slot(comm->rank).gone.store(1);
  std::lock_guard lock(mutex);
  --alive;
}

bool attached(Comm& comm) {
  for (int32_t q = 0; q < comm.size; ++q) {
    if (comm.slot(q).attached.load() == 0) return false;
  }
  // Each unlinks: the one whose map is the last to be made finds nothing.
  detach_name(comm.name);
  return true;
}

NcclResult open(Comm* comm, const std::string& name, int32_t rank,
                int32_t size) {
  comm->name = name;
  comm->rank = rank;
  comm->size = size;
  comm->uid = hash_of(name);
  comm->shared = attach(name, rank);
  return comm->shared == nullptr ? kSystemError : kSuccess;
}

}  // namespace

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

int enqueue(RawStream stream, void (*run)(void*), void* argument) {
  using Function = int (*)(RawStream, void (*)(void*), void*);
  static auto put = reinterpret_cast<Function>(
      dlsym(dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW), "double_enqueue"));
  return put == nullptr ? 1 : put(stream, run, argument);
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
  std::lock_guard lock(mutex);
  return counts[what];
}
NCCL_API void double_nccl_reset_counts() {
  std::lock_guard lock(mutex);
  counts.clear();
}
NCCL_API int64_t double_nccl_alive() {
  std::lock_guard lock(mutex);
  return alive;
}
NCCL_API void double_nccl_fail(int64_t launch, int32_t result) {
  std::lock_guard lock(mutex);
  fail_at = launch;
  fail_with = result;
}
NCCL_API void double_nccl_swap(int64_t launch, int32_t rank) {
  std::lock_guard lock(mutex);
  swap_at = launch;
  swap_rank = rank;
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
  return comm != nullptr && !comm->last_error.empty() ? comm->last_error.c_str()
                                                      : thread_error.c_str();
}

NCCL_API NcclResult ncclGetUniqueId(UniqueId* id) {
  std::memset(id, 0, sizeof *id);
  std::lock_guard lock(mutex);
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  std::snprintf(id->bytes, sizeof id->bytes, "/alq-nccl-%d-%llu-%lx",
                static_cast<int>(getpid()),
                static_cast<unsigned long long>(++ids),
                static_cast<unsigned long>(now.tv_nsec));
  return kSuccess;
}

NCCL_API NcclResult ncclCommInitRankConfig(CommHandle* out, int size,
                                           UniqueId id, int rank,
                                           Config* config) {
  if (depth > 0) return refuse("init inside a group");
  if (size < 1 || size > kMostRanks || rank < 0 || rank >= size) {
    return refuse("ncclCommInitRankConfig: rank and size", kInvalidArgument);
  }
  Comm* comm = new_comm();
  if (comm == nullptr) {
    thread_error = "too many communicators";
    return kSystemError;
  }
  NcclResult result = check_config(config, *comm);
  if (result == kSuccess) result = open(comm, name_of(id), rank, size);
  if (result != kSuccess) return result;
  comm->family = comm->shared;
  comm->inside = new std::atomic<int32_t>(0);
  comm->working = new std::atomic<int32_t>(0);
  for (int32_t q = 0; q < size; ++q) comm->root_ranks.push_back(q);
  *out = as_handle(comm);
  return begin(*comm, [comm] { return attached(*comm); });
}

NCCL_API NcclResult ncclCommSplit(CommHandle handle, int color, int key,
                                  CommHandle* out, Config* config) {
  NcclResult usable_now = usable(handle, "ncclCommSplit");
  if (usable_now != kSuccess) return usable_now;
  Comm* parent = as_comm(handle);
  Inside inside(*parent);
  if (depth > 0) return refuse("split inside a group");
  if (parent->completed.load() < parent->issued) {
    return refuse("split while operations are under way on the parent");
  }
  const uint64_t n = ++parent->splits;
  SplitWish& wish = parent->slot(parent->rank).splits[n % 2];
  wish.color = color;
  wish.key = key;
  wish.number.store(n);
  *out = nullptr;
  Config copy = config == nullptr ? Config{} : *config;
  return begin(*parent, [=]() mutable {
    std::vector<int32_t> members;
    for (int32_t q = 0; q < parent->size; ++q) {
      SplitWish& other = parent->slot(q).splits[n % 2];
      if (other.number.load() < n) return false;
      if (other.color == color) members.push_back(q);
    }
    if (color < 0) return true;
    std::stable_sort(members.begin(), members.end(), [&](int32_t a, int32_t b) {
      return parent->slot(a).splits[n % 2].key <
             parent->slot(b).splits[n % 2].key;
    });
    Comm* child = new_comm();
    if (child == nullptr) {
      parent->fail(kSystemError, "too many communicators");
      return true;
    }
    auto me = std::find(members.begin(), members.end(), parent->rank);
    std::string name =
        parent->name + "-" + std::to_string(n) + "." + std::to_string(color);
    NcclResult result = check_config(&copy, *child);
    if (result == kSuccess) {
      result = open(child, name, static_cast<int32_t>(me - members.begin()),
                    static_cast<int32_t>(members.size()));
    }
    if (result != kSuccess) {
      parent->fail(result, "the child could not be made");
      return true;
    }
    child->family = parent->family;
    child->inside = parent->inside;
    child->working = parent->working;
    for (int32_t q : members) {
      child->root_ranks.push_back(parent->root_ranks[static_cast<size_t>(q)]);
    }
    begin(*child, [child] { return attached(*child); });
    *out = as_handle(child);
    return true;
  });
}

NCCL_API NcclResult ncclCommGetAsyncError(CommHandle handle,
                                          NcclResult* error) {
  Comm* comm = as_comm(handle);
  if (comm == nullptr || comm->magic != kLive) {
    return refuse("ncclCommGetAsyncError: no live communicator",
                  kInvalidArgument);
  }
  Inside inside(*comm);
  if (comm->error.load() == kSuccess && comm->pending) {
    if (comm->extra_polls > 0) {
      --comm->extra_polls;
    } else {
      // The condition may begin something else.
      auto condition = std::move(comm->pending);
      comm->pending = nullptr;
      if (!condition()) comm->pending = std::move(condition);
    }
    if (comm->pending) {
      *error = kInProgress;
      return kSuccess;
    }
  }
  *error = static_cast<NcclResult>(comm->error.load());
  return kSuccess;
}

NCCL_API NcclResult ncclCommUserRank(CommHandle handle, int* rank) {
  NcclResult result = usable(handle, "ncclCommUserRank");
  if (result == kSuccess) *rank = as_comm(handle)->rank;
  return result;
}

NCCL_API NcclResult ncclCommFinalize(CommHandle handle) {
  NcclResult result = usable(handle, "ncclCommFinalize");
  if (result != kSuccess) return result;
  Comm* comm = as_comm(handle);
  Inside inside(*comm);
  comm->finalized = true;
  comm->slot(comm->rank).finalized.store(1);
  return begin(*comm, [comm] {
    if (comm->completed.load() < comm->issued) return false;
    for (int32_t q = 0; q < comm->size; ++q) {
      Slot& slot = comm->slot(q);
      if (slot.finalized.load() == 0 && slot.gone.load() == 0) return false;
    }
    return true;
  });
}

NCCL_API NcclResult ncclCommDestroy(CommHandle handle) {
  NcclResult result = usable(handle, "ncclCommDestroy");
  if (result != kSuccess) return result;
  Comm* comm = as_comm(handle);
  Inside inside(*comm);
  if (!comm->finalized) violation("a communicator is destroyed, not finalized");
  if (comm->completed.load() < comm->issued) {
    violation("a communicator is destroyed while operations are under way");
  }
  bury(comm);
  count("destroy");
  return kSuccess;
}

NCCL_API NcclResult ncclCommAbort(CommHandle handle) {
  Comm* comm = as_comm(handle);
  if (comm == nullptr || comm->magic != kLive) {
    return refuse("ncclCommAbort: no live communicator", kInvalidArgument);
  }
  count("abort");
  comm->pending = nullptr;
  comm->aborted.store(true);
  int64_t hang_ms = setting("ALIQUOT_DOUBLE_NCCL_ABORT_MS", 0);
  if (hang_ms > 0) usleep(static_cast<useconds_t>(hang_ms) * 1000);
  while (comm->running.load() != 0) usleep(100);
  detach_name(comm->name);
  bury(comm);
  return kSuccess;
}

NCCL_API NcclResult ncclGroupStart() {
  ++depth;
  return kSuccess;
}

NCCL_API NcclResult ncclGroupEnd() {
  if (depth == 0) return refuse("ncclGroupEnd without ncclGroupStart");
  return --depth > 0 ? kSuccess : end_group();
}

NCCL_API NcclResult ncclRedOpCreatePreMulSum(NcclOp* op, void* scalar,
                                             NcclType type, int32_t residence,
                                             CommHandle handle) {
  NcclResult result = usable(handle, "ncclRedOpCreatePreMulSum");
  if (result != kSuccess) return result;
  PremulOp made{true, type, 1};
  if (residence != kScalarOnHost) return refuse("a scalar on the device");
  if (type == kFloat64) {
    std::memcpy(&made.scalar, scalar, sizeof made.scalar);
  } else if (type == kFloat32) {
    float f;
    std::memcpy(&f, scalar, sizeof f);
    made.scalar = f;
  } else {
    return refuse("a premultiplied sum of another type", kInvalidArgument);
  }
  Comm* comm = as_comm(handle);
  comm->ops.push_back(made);
  *op = static_cast<NcclOp>(5 + comm->ops.size() - 1);
  return kSuccess;
}

NCCL_API NcclResult ncclRedOpDestroy(NcclOp op, CommHandle handle) {
  NcclResult result = usable(handle, "ncclRedOpDestroy");
  if (result != kSuccess) return result;
  Comm* comm = as_comm(handle);
  size_t index = static_cast<size_t>(op) - 5;
  if (index >= comm->ops.size() || !comm->ops[index].live) {
    return refuse("ncclRedOpDestroy: no such operation", kInvalidArgument);
  }
  comm->ops[index].live = false;
  while (!comm->ops.empty() && !comm->ops.back().live) comm->ops.pop_back();
  return kSuccess;
}

namespace {

CallOf call_of(CallKind kind, const void* src, void* dst, size_t n,
               NcclType type, CommHandle comm, RawStream stream) {
  CallOf call;
  call.kind = kind;
  call.comm = as_comm(comm);
  call.stream = stream;
  call.src = static_cast<const std::byte*>(src);
  call.dst = static_cast<std::byte*>(dst);
  call.count = n;
  call.type = type;
  return call;
}

NcclResult add_reduction(CallOf call, NcclOp op, const char* function) {
  NcclResult result = usable(as_handle(call.comm), function);
  if (result == kSuccess) result = with_op(call, op);
  return result == kSuccess ? add(call, function) : result;
}

}  // namespace

NCCL_API NcclResult ncclAllReduce(const void* src, void* dst, size_t n,
                                  NcclType type, NcclOp op, CommHandle comm,
                                  RawStream stream) {
  return add_reduction(call_of(kAllReduceCall, src, dst, n, type, comm, stream),
                       op, "ncclAllReduce");
}

NCCL_API NcclResult ncclReduce(const void* src, void* dst, size_t n,
                               NcclType type, NcclOp op, int root,
                               CommHandle comm, RawStream stream) {
  CallOf call = call_of(kReduceCall, src, dst, n, type, comm, stream);
  call.root = root;
  return add_reduction(call, op, "ncclReduce");
}

NCCL_API NcclResult ncclReduceScatter(const void* src, void* dst, size_t n,
                                      NcclType type, NcclOp op, CommHandle comm,
                                      RawStream stream) {
  return add_reduction(
      call_of(kReduceScatterCall, src, dst, n, type, comm, stream), op,
      "ncclReduceScatter");
}

NCCL_API NcclResult ncclBroadcast(const void* src, void* dst, size_t n,
                                  NcclType type, int root, CommHandle comm,
                                  RawStream stream) {
  CallOf call = call_of(kBroadcastCall, src, dst, n, type, comm, stream);
  call.root = root;
  return add(call, "ncclBroadcast");
}

NCCL_API NcclResult ncclAllGather(const void* src, void* dst, size_t n,
                                  NcclType type, CommHandle comm,
                                  RawStream stream) {
  return add(call_of(kAllGatherCall, src, dst, n, type, comm, stream),
             "ncclAllGather");
}

NCCL_API NcclResult ncclSend(const void* src, size_t n, NcclType type, int peer,
                             CommHandle comm, RawStream stream) {
  CallOf call = call_of(kSendCall, src, nullptr, n, type, comm, stream);
  call.root = peer;
  return add(call, "ncclSend");
}

NCCL_API NcclResult ncclRecv(void* dst, size_t n, NcclType type, int peer,
                             CommHandle comm, RawStream stream) {
  CallOf call = call_of(kRecvCall, nullptr, dst, n, type, comm, stream);
  call.root = peer;
  return add(call, "ncclRecv");
}
