// The stand-in's libnccl.so.2: NCCL's communicators and its rules.
//
// Non-blocking communicators answer "in progress" for a few polls after every
// call, and what was called takes effect only then.  Ranks must issue what
// concerns two of them in the same order, on all communicators of a family, and
// run them one after the other unless NCCL_LAUNCH_ORDER_IMPLICIT is 1;
// one host thread at a time may be inside for a rank.
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/doubles/nccl/state.h"

namespace aliquot::nccl_double {
namespace {

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
  std::lock_guard lock(state().mutex);
  if (state().alive >= setting("ALIQUOT_DOUBLE_NCCL_COMMS", 256))
    return nullptr;
  ++state().alive;
  return new Comm();
}

void bury(Comm* comm) {
  comm->magic = kDead;
  comm->slot(comm->rank).gone.store(1);
  std::lock_guard lock(state().mutex);
  --state().alive;
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
}  // namespace aliquot::nccl_double

using namespace aliquot::nccl_double;

NCCL_API NcclResult ncclGetUniqueId(UniqueId* id) {
  std::memset(id, 0, sizeof *id);
  std::lock_guard lock(state().mutex);
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  std::snprintf(id->bytes, sizeof id->bytes, "/alq-nccl-%d-%llu-%lx",
                static_cast<int>(getpid()),
                static_cast<unsigned long long>(++state().ids),
                static_cast<unsigned long>(now.tv_nsec));
  return kSuccess;
}

NCCL_API NcclResult ncclCommInitRankConfig(CommHandle* out, int size,
                                           UniqueId id, int rank,
                                           Config* config) {
  if (this_thread().depth > 0) return refuse("init inside a group");
  if (size < 1 || size > kMostRanks || rank < 0 || rank >= size) {
    return refuse("ncclCommInitRankConfig: rank and size", kInvalidArgument);
  }
  Comm* comm = new_comm();
  if (comm == nullptr) {
    this_thread().error = "too many communicators";
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
  if (this_thread().depth > 0) return refuse("split inside a group");
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
    // As with NCCL: a communicator waits for graphs that use it.
    if (comm->in_graphs.load() != 0) return false;
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
  while (comm->running.load() != 0 || comm->in_graphs.load() != 0) usleep(100);
  detach_name(comm->name);
  bury(comm);
  return kSuccess;
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
