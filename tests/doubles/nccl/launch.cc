// The data path: what a launch does on its stream's thread.  Ranks work in
// rounds: each puts a piece of its contribution where the others read it, all
// wait for all, each takes what it needs, all wait for all.  As with NCCL a
// launch does not end before all ranks have come to it, or it is aborted.
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/doubles/nccl/comm.h"

namespace aliquot::nccl_double {
namespace {

// False: aborted.
template <typename Condition>
bool await(Comm& comm, Condition condition) {
  for (int64_t i = 0; !condition(); ++i) {
    if (comm.aborted.load() || comm.error.load() != kSuccess) return false;
    if (i < 64) {
      sched_yield();
      continue;
    }
    timespec nap{0, 50'000};
    nanosleep(&nap, nullptr);
  }
  return true;
}

template <typename Word>
bool all_reach(Comm& comm, Word Slot::*word, uint64_t value) {
  for (int32_t q = 0; q < comm.size; ++q) {
    if (!await(comm, [&] { return (comm.slot(q).*word).load() >= value; })) {
      return false;
    }
  }
  return true;
}

bool begin(Comm& comm, const CallOf& call) {
  const uint64_t n = ++comm.collectives;
  Slot& mine = comm.slot(comm.rank);
  bool reduces = call.kind == kAllReduceCall || call.kind == kReduceCall ||
                 call.kind == kReduceScatterCall;
  bool rooted = call.kind == kReduceCall || call.kind == kBroadcastCall;
  // Each rank has its own scalar, so the kind of operation is compared.
  int32_t op = !reduces ? 0 : call.scaled ? 1000 : call.op;
  mine.descriptors[n % 2] = {call.kind, call.type, op, rooted ? call.root : 0,
                             call.count};
  mine.announced.store(n);
  if (!all_reach(comm, &Slot::announced, n)) return false;
  const Descriptor first = comm.slot(0).descriptors[n % 2];
  for (int32_t q = 1; q < comm.size; ++q) {
    const Descriptor other = comm.slot(q).descriptors[n % 2];
    if (same(first, other)) continue;
    std::string why = "NCCL call " + std::to_string(n) + " of " + comm.name +
                      ": rank 0 made " + text(first) + ", rank " +
                      std::to_string(q) + " made " + text(other);
    if (comm.rank == 0) violation(why);
    comm.fail(kInternalError, why);
    return false;
  }
  return true;
}

// Bytes that each rank contributes.
uint64_t contribution(const Comm& comm, const CallOf& call) {
  uint64_t bytes = call.count * type_size(call.type);
  return call.kind == kReduceScatterCall
             ? bytes * static_cast<uint64_t>(comm.size)
             : bytes;
}

void put(Comm& comm, const CallOf& call, uint64_t at, uint64_t bytes) {
  if (call.kind == kBroadcastCall && comm.rank != call.root) return;
  std::byte* stage = comm.slot(comm.rank).stage;
  std::memcpy(stage, call.src + at, bytes);
  if (call.scaled) {
    scale(stage, bytes / type_size(call.type), call.type, call.scalar);
  }
}

void take_sum(Comm& comm, const CallOf& call, uint64_t at, uint64_t bytes) {
  uint64_t begin = at, end = at + bytes, shift = 0;
  if (call.kind == kReduceScatterCall) {
    uint64_t part = call.count * type_size(call.type);
    shift = part * static_cast<uint64_t>(comm.rank);
    begin = std::max(begin, shift);
    end = std::min(end, shift + part);
    if (begin >= end) return;
  }
  if (call.kind == kReduceCall && comm.rank != call.root) return;
  const std::byte* from[kMostRanks];
  for (int32_t q = 0; q < comm.size; ++q) {
    from[q] = comm.slot(q).stage + (begin - at);
  }
  combine(call.dst + (begin - shift), from, comm.size,
          (end - begin) / type_size(call.type), call.type, call.op);
}

void take(Comm& comm, const CallOf& call, uint64_t at, uint64_t bytes) {
  if (call.kind == kBroadcastCall) {
    std::memcpy(call.dst + at, comm.slot(call.root).stage, bytes);
    return;
  }
  if (call.kind != kAllGatherCall) return take_sum(comm, call, at, bytes);
  uint64_t part = call.count * type_size(call.type);
  for (int32_t q = 0; q < comm.size; ++q) {
    std::memcpy(call.dst + static_cast<uint64_t>(q) * part + at,
                comm.slot(q).stage, bytes);
  }
}

bool run_collective(Comm& comm, const CallOf& call) {
  if (!begin(comm, call)) return false;
  Slot& mine = comm.slot(comm.rank);
  const uint64_t total = contribution(comm, call);
  for (uint64_t at = 0; at < total; at += kStage) {
    const uint64_t bytes = std::min<uint64_t>(kStage, total - at);
    const uint64_t round = ++comm.rounds;
    if (!all_reach(comm, &Slot::read, round - 1)) return false;
    put(comm, call, at, bytes);
    mine.written.store(round);
    if (!all_reach(comm, &Slot::written, round)) return false;
    take(comm, call, at, bytes);
    mine.read.store(round);
  }
  return all_reach(comm, &Slot::read, comm.rounds);
}

// One step of a message; done: it is complete.
enum class Step { kNothing, kMoved, kDone, kFailed };

Step step_send(Comm& comm, const CallOf& call, uint64_t* at) {
  Mailbox& box = comm.shared->mail[comm.rank][call.root];
  if (box.written.load() != box.read.load()) return Step::kNothing;
  const uint64_t total = call.count * type_size(call.type);
  if (*at == total) return Step::kDone;
  box.bytes = std::min<uint64_t>(kMail, total - *at);
  box.total = total;
  box.type = call.type;
  std::memcpy(box.data, call.src + *at, box.bytes);
  *at += box.bytes;
  box.written.fetch_add(1);
  return Step::kMoved;
}

Step step_recv(Comm& comm, const CallOf& call, uint64_t* at) {
  Mailbox& box = comm.shared->mail[call.root][comm.rank];
  const uint64_t total = call.count * type_size(call.type);
  if (*at == total) return Step::kDone;
  if (box.written.load() == box.read.load()) return Step::kNothing;
  if (box.total != total || box.type != call.type || *at + box.bytes > total) {
    std::string why = "rank " + std::to_string(comm.rank) + " of " + comm.name +
                      " receives " + std::to_string(total) + " bytes, rank " +
                      std::to_string(call.root) + " sent " +
                      std::to_string(box.total);
    violation(why);
    comm.fail(kInternalError, why);
    return Step::kFailed;
  }
  std::memcpy(call.dst + *at, box.data, box.bytes);
  *at += box.bytes;
  box.read.fetch_add(1);
  return Step::kMoved;
}

// Messages of one group make progress side by side, those between the same two
// ranks in order.
bool run_messages(Comm& comm, const std::vector<CallOf>& calls) {
  std::vector<uint64_t> at(calls.size(), 0);
  std::vector<bool> done(calls.size(), false);
  size_t left = calls.size();
  while (left > 0) {
    bool moved = false;
    for (size_t i = 0; i < calls.size(); ++i) {
      if (done[i]) continue;
      bool behind = false;
      for (size_t k = 0; k < i; ++k) {
        behind = behind || (!done[k] && calls[k].kind == calls[i].kind &&
                            calls[k].root == calls[i].root);
      }
      if (behind) continue;
      Step step = calls[i].kind == kSendCall
                      ? step_send(comm, calls[i], &at[i])
                      : step_recv(comm, calls[i], &at[i]);
      if (step == Step::kFailed) return false;
      moved = moved || step != Step::kNothing;
      if (step != Step::kDone) continue;
      done[i] = true;
      --left;
    }
    if (moved) continue;
    if (comm.aborted.load() || comm.error.load() != kSuccess) return false;
    timespec nap{0, 20'000};
    nanosleep(&nap, nullptr);
  }
  return true;
}

}  // namespace

namespace {

bool healthy(const Comm& comm) {
  return !comm.aborted.load() && comm.error.load() == kSuccess;
}

// Each might take what the other needs to go on, on some rank.
bool orders_launches() {
  static const bool orders = [] {
    const char* flag = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    return flag != nullptr && std::strcmp(flag, "1") == 0;
  }();
  return orders;
}

}  // namespace

void run_launch(Launch& launch) {
  Comm& comm = *launch.comm;
  comm.running.fetch_add(1);
  bool well = healthy(comm);
  if (comm.working->fetch_add(1) != 0 && well && !orders_launches()) {
    violation("operations of two communicators run at the same time on rank " +
              std::to_string(comm.rank) + " of " + comm.name);
  }
  std::vector<CallOf> messages;
  for (const CallOf& call : launch.calls) {
    if (call.kind == kSendCall || call.kind == kRecvCall) {
      messages.push_back(call);
    } else if (well) {
      well = run_collective(comm, call);
    }
  }
  if (well) run_messages(comm, messages);
  if (!launch.captured) comm.completed.fetch_add(1);
  comm.working->fetch_sub(1);
  comm.running.fetch_sub(1);
}

}  // namespace aliquot::nccl_double
