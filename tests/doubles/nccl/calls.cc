// Calls of collectives and messages, and the groups that launch them.
#include "tests/doubles/nccl/state.h"

namespace aliquot::nccl_double {
namespace {

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

void drop_launch(void* argument) {
  auto* launch = static_cast<Launch*>(argument);
  if (launch->captured) --launch->comm->in_graphs;
  delete launch;
}

// Puts what a group collected on the stream of each communicator.
void launch_now(Launch* launch, RawStream stream) {
  Comm& comm = *launch->comm;
  log_order(comm, comm.issued);
  bool injected = false;
  {
    std::lock_guard lock(state().mutex);
    injected = state().fail_at > 0 && --state().fail_at == 0;
  }
  if (injected) {
    comm.fail(static_cast<NcclResult>(state().fail_with),
              "a failure asked for");
  }
  launch->captured = capturing(stream);
  if (launch->captured) {
    ++comm.in_graphs;
  } else {
    ++comm.issued;
  }
  enqueue(stream, enqueue_on_stream, drop_launch, launch);
}

// The fault "communicators in another order": holds a launch back until this
// rank has launched on another communicator.
bool hold_back(Launch* launch, RawStream stream) {
  Comm& comm = *launch->comm;
  std::unique_lock lock(state().mutex);
  if (state().swap_at <= 0 ||
      comm.root_ranks[static_cast<size_t>(comm.rank)] != state().swap_rank) {
    return false;
  }
  if (--state().swap_at != 0) return false;
  state().held[comm.inside] = {
      &comm, [launch, stream] { launch_now(launch, stream); }};
  return true;
}

void release_held(Comm& comm) {
  std::function<void()> go;
  {
    std::lock_guard lock(state().mutex);
    auto it = state().held.find(comm.inside);
    if (it == state().held.end()) return;
    go = std::move(it->second.go);
    state().held.erase(it);
  }
  go();
}

}  // namespace

NcclResult end_group() {
  std::vector<Launch*> launches;
  std::vector<RawStream> streams;
  for (CallOf& call : this_thread().grouped) {
    Launch* into = nullptr;
    for (size_t i = 0; i < launches.size(); ++i) {
      if (launches[i]->comm != call.comm) continue;
      into = launches[i];
      if (streams[i] != call.stream) {
        this_thread().grouped.clear();
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
  this_thread().grouped.clear();
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

namespace {

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
  this_thread().grouped.push_back(call);
  return this_thread().depth > 0 ? kSuccess : end_group();
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
}  // namespace aliquot::nccl_double

using namespace aliquot::nccl_double;

NCCL_API NcclResult ncclGroupStart() {
  ++this_thread().depth;
  return kSuccess;
}

NCCL_API NcclResult ncclGroupEnd() {
  if (this_thread().depth == 0)
    return refuse("ncclGroupEnd without ncclGroupStart");
  return --this_thread().depth > 0 ? kSuccess : end_group();
}

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
