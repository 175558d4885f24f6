#include "comm/mem/group.h"

#include "comm/mem/calibrate.h"
#include "comm/mem/coll_op.h"
#include "comm/mem/p2p.h"
#include "comm/mem/poison.h"
#include "comm/mem/shrink.h"
#include "comm/mem/throttle.h"

namespace aliquot::mem {
namespace {

// A handle on a queued operation.
class MemWork : public Work {
 public:
  MemWork(std::shared_ptr<WorkState> state, std::shared_ptr<GroupCore> core,
          std::shared_ptr<Runner> runner)
      : state_(std::move(state)),
        core_(std::move(core)),
        runner_(std::move(runner)) {}

  bool done() const override { return state_->done.load(); }

  Status wait(Deadline deadline) override {
    auto poll = [this](bool) { return done() ? Step::kDone : Step::kWaiting; };
    WaitCounts counts;
    int64_t start = now_ns();
    bool in_time = runner_->wait(Poll(poll), deadline, &counts);
    GroupStats stats;
    stats.sleeps = stats.syscalls = counts.sleeps;
    core_->stats.add(stats);
    if (in_time) return state_->status;
    // The operation has a deadline of its own, which names who is missing.
    return make_error(
        ALQ_DEADLINE_EXCEEDED,
        "an operation of group \"{}\" is not done after {} ms; it "
        "goes on: wait again, or abort the group",
        core_->name, (now_ns() - start) / 1'000'000);
  }

 private:
  const std::shared_ptr<WorkState> state_;
  const std::shared_ptr<GroupCore> core_;
  const std::shared_ptr<Runner> runner_;
};

uint64_t take_number(GroupCore& core, const Coll& coll) {
  if (!is_pair(coll.kind)) return core.issued.fetch_add(1) + 1;
  PairTurns& pair = core.pairs[static_cast<size_t>(coll.root)];
  auto& issued =
      coll.kind == CollKind::kSend ? pair.send_issued : pair.recv_issued;
  return issued.fetch_add(1) + 1;
}

}  // namespace

Status MemGroup::usable() {
  if (core_->world->forked()) {
    return make_error(ALQ_FAILED_PRECONDITION,
                      "group \"{}\" belongs to the parent process; a forked "
                      "child must not use it",
                      core_->name);
  }
  if (core_->closed.load(std::memory_order_relaxed)) {
    return make_error(ALQ_FAILED_PRECONDITION, "group \"{}\" is closed",
                      core_->name);
  }
  for (const Origin& origin : core_->origins) {
    if (!removed(origin.control, origin.rank)) continue;
    int32_t self = core_->world_rank(core_->rank);
    Status cause =
        make_error(ALQ_PEER_FAILED,
                   "rank {} was removed from group \"{}\", which group \"{}\" "
                   "was split from; join a new world",
                   self, origin.name, core_->name)
            .with_rank(self);
    poison(*core_, cause.code(), self, cause.message());
    return cause;
  }
  return {};
}

Status MemGroup::enter() {
  ALQ_TRY(usable());
  if (poisoned(*core_)) return poison_report(*core_);
  return {};
}

Status MemGroup::issue(const Coll& call, Stream* stream,
                       std::shared_ptr<Work>* work) {
  ALQ_TRY(enter());
  Coll coll = call;
  ALQ_TRY(normalize(*core_, &coll));
  ALQ_TRY(core_->world->context->faults.point("coll.issue"));
  if (stream == nullptr) {
    ALQ_TRY(run_inline(coll, 0, nullptr));
    if (work != nullptr) {
      auto state = std::make_shared<WorkState>();
      state->done.store(true);
      *work =
          std::make_shared<MemWork>(std::move(state), core_, device_->runner());
    }
    return {};
  }
  std::shared_ptr<WorkState> state;
  if (work != nullptr) {
    state = std::make_shared<WorkState>();
    *work = std::make_shared<MemWork>(state, core_, device_->runner());
  }
  auto* queue = static_cast<Queue*>(stream);
  // Memory of ours lives until the operation is done, whoever releases it.
  std::shared_ptr<Segment> pins[2] = {
      core_->world->segments->find(coll.src, 1),
      core_->world->segments->find(coll.dst, 1)};
  uint64_t number = take_number(*core_, coll);
  if (is_pair(coll.kind)) {
    queue->enqueue<P2pOp>(*core_, core_, coll, number, std::move(state));
  } else {
    queue->enqueue<CollOp>(*core_, core_, coll, 0, number, std::move(state));
  }
  for (std::shared_ptr<Segment>& pin : pins) {
    if (pin != nullptr) queue->enqueue<PinOp>(std::move(pin));
  }
  double wire = core_->world->context->throttle_bytes_per_s;
  if (wire > 0) {
    int64_t bytes = received_bytes(call, core_->rank, core_->size);
    queue->enqueue<HoldOp>(
        static_cast<int64_t>(static_cast<double>(bytes) / wire * 1e9));
  }
  return {};
}

Status MemGroup::run_inline(const Coll& coll, int32_t flags,
                            const Deadline* deadline) {
  uint64_t number = take_number(*core_, coll);
  if (is_pair(coll.kind)) {
    P2pOp op(*core_, nullptr, coll, number, nullptr);
    return run_op(op);
  }
  CollOp op(*core_, nullptr, coll, flags, number, nullptr);
  if (deadline != nullptr) op.set_deadline(*deadline);
  return run_op(op);
}

Status MemGroup::run_op(Op& op) {
  auto poll = [&op](bool slow) { return op.step(slow); };
  WaitCounts counts;
  // The operation has its own deadline.
  device_->runner()->wait(Poll(poll), Deadline::never(), &counts);
  if (counts.sleeps != 0) {
    GroupStats stats;
    stats.sleeps = stats.syscalls = counts.sleeps;
    core_->stats.add(stats);
  }
  return op.status();
}

void MemGroup::set_timeout_ns(int64_t ns) {
  core_->timeout_ns.store(ns > 0 ? ns : core_->world->context->timeout_ns);
}

Status MemGroup::status() const {
  if (core_->world->forked()) {
    return make_error(ALQ_FAILED_PRECONDITION,
                      "group \"{}\" belongs to the parent process",
                      core_->name);
  }
  return poison_cause(*core_);
}

PrivateMemory MemGroup::private_memory() const {
  if (core_->one_process) return {};
  const StageLimits limits = stage_limits(*core_->world);
  if (!core_->world->cma) return {"staged", 0, 0, limits.streams};
  return {"read", limits.sums, limits.copies, limits.streams};
}

void MemGroup::abort(const Status& reason) {
  if (core_->world->forked()) return;
  int32_t self = core_->world_rank(core_->rank);
  // Whose fault it is, if that is known.
  int32_t culprit = reason.rank() >= 0 ? reason.rank() : self;
  auto abort_one = [&](GroupCore& core) {
    core.aborts.fetch_add(1);
    poison(core, ALQ_ABORTED, culprit,
           fmt::format("group \"{}\" was aborted by rank {}: {}", core.name,
                       self, reason.message()));
  };
  abort_one(*core_);
  if (!core_->is_world) return;
  // The world's end is the end of all its groups.
  std::lock_guard lock(core_->world->groups_mutex);
  for (GroupCore* core : core_->world->groups) {
    if (core != core_.get()) abort_one(*core);
  }
}

void MemGroup::fail_with(Group& other) {
  auto* first = dynamic_cast<MemGroup*>(&other);
  if (first != nullptr) first->core_->consequences.add(core_);
}

void MemGroup::on_failure(std::shared_ptr<FailWord> word) {
  core_->consequences.add(word);
}

Status MemGroup::close(Deadline deadline) {
  ALQ_TRY(enter());
  ALQ_TRY(core_->world->context->faults.point("group.close"));
  Coll barrier;
  barrier.label = "close";
  ALQ_TRY(normalize(*core_, &barrier));
  ALQ_TRY(run_inline(barrier, kCallInternal, &deadline));
  core_->closed.store(true);
  Line& state = core_->self().state;
  state.value.store((state.value.load() & ~kStateMask) | kClosed);
  core_->ring_peers();
  return {};
}

}  // namespace aliquot::mem
