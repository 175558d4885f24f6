// Following operations: what is done, what is wrong, and the end of a group.
#include "comm/nccl/core.h"

#include "device/cpu/fork.h"

namespace aliquot::nccl {

NcclCore::NcclCore(std::shared_ptr<Runtime> shared_runtime,
                   std::shared_ptr<Group> control_group, std::string group_name,
                   std::unique_ptr<Board> shared_board, CommHandle comm)
    : runtime(std::move(shared_runtime)),
      control(std::move(control_group)),
      name(std::move(group_name)),
      board(std::move(shared_board)),
      stamp(fork_stamp()),
      rank(control->rank()),
      size(control->size()),
      timeout_ns(control->timeout_ns()),
      comm_(comm) {}

NcclCore::~NcclCore() {
  if (fork_stamp() != stamp) return;
  runtime->unwatch(this);
  board->leave();
  {
    auto lock = runtime->lock(Deadline::after(1'000'000'000), nullptr);
    if (lock.ok() && runtime->last.group == this) runtime->last.group = nullptr;
  }
  if (!failed()) {
    runtime->bury(take_comm(), last_.capture == 0 ? last_.event : nullptr);
  }
}

Status NcclCore::prepare() {
  for (Tracked& slot : tracked_) {
    ALQ_ASSIGN(slot.event, device().create_event());
  }
  ALQ_ASSIGN(capture_event_, device().create_event());
  ALQ_ASSIGN(token_, device().allocate(256, "barrier of " + name));
  runtime->watch(this);
  return {};
}

GroupStats NcclCore::stats() const {
  GroupStats out;
  out.ops = ops_.load();
  out.bytes_read = read_.load();
  out.bytes_written = written_.load();
  out.peer_bytes_read = received_.load();
  out.sleeps = sleeps_.load();
  return out;
}

Status NcclCore::wait(Event& event, Deadline deadline) {
  Naps naps;
  const int64_t start = now_ns();
  Status status;
  while (status.ok()) {
    // In this order: nothing is aborted before the group has failed.
    if (failed()) {
      if (!ended_before_failure(event)) status = cause();
      break;
    }
    if (device().done(event)) {
      // Events of a device that failed happen too, and mean nothing.
      if (Status lost = device_failure(); !lost.ok()) status = fail(lost);
      break;
    }
    if (deadline.passed()) {
      status = make_error(
          ALQ_DEADLINE_EXCEEDED,
          "an operation of group \"{}\" is not done after {} ms; it goes on: "
          "wait again, or abort the group",
          name, (now_ns() - start) / 1'000'000);
      break;
    }
    status = check();
    naps.take();
  }
  sleeps_.fetch_add(naps.sleeps(), std::memory_order_relaxed);
  if (!status.ok() && failed()) reported.store(true);
  return status;
}

bool NcclCore::ended_before_failure(const Event& event) {
  std::lock_guard lock(track_mutex_);
  for (const Tracked& slot : tracked_) {
    if (slot.event.get() == &event) return !slot.live;
  }
  return true;  // followed no more
}

Status NcclCore::drain(Deadline deadline) {
  std::shared_ptr<Event> event;
  {
    ALQ_ASSIGN(auto lock, runtime->lock(deadline, stop_when_failed()));
    if (last_.capture == 0) event = last_.event;
  }
  return event == nullptr ? check() : wait(*event, deadline);
}

void NcclCore::tell(const Status& cause_found) {
  oldest();  // what is done by now was done well
  board->poison(cause_found);
  consequences.raise_words();
  for (const auto& follower : consequences.followers()) {
    follower->tell(cause_found);
  }
}

// The abort lets streams go on to what followers do: all are told before.
Status NcclCore::fail(const Status& cause_found) {
  tell(cause_found);
  Status first = board->cause();
  if (!failed_.exchange(true)) {
    // The abort takes the order itself, once whoever has it saw the failure.
    runtime->abort(take_comm());
    Flight* flight = runtime->context->flight.get();
    if (flight != nullptr) flight->fail(first);
    for (const auto& follower : consequences.followers()) {
      static_cast<void>(follower->fail(first));
    }
  }
  return first;
}

Status NcclCore::check(bool holds_order) {
  if (failed()) return cause();
  std::unique_lock lock(check_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return {};  // somebody does
  Status found = find_failure(holds_order);
  return found.ok() ? Status() : fail(found);
}

std::optional<NcclCore::Tracked> NcclCore::oldest() {
  std::lock_guard lock(track_mutex_);
  while (first_ != next_) {
    Tracked& slot = tracked_[first_ % kTracked];
    if (!slot.live || !device().done(*slot.event)) break;
    if (!runtime->port.healthy().ok()) break;
    slot.live = false;
    ++first_;
    progress_at_ = now_ns();
  }
  if (first_ == next_) return std::nullopt;
  Tracked copy = tracked_[first_ % kTracked];
  copy.since = std::max(copy.since, progress_at_);
  return copy;
}

std::string NcclCore::what(const Tracked& op) const {
  std::string call = call_text(op.call) + label_text(op.label);
  if (op.number == 0 && op.peer >= 0) {
    return fmt::format("{} of group \"{}\" with rank {}", call, name,
                       world_rank(op.peer));
  }
  return fmt::format("operation {} ({}) of group \"{}\"", op.number, call,
                     name);
}

Status NcclCore::find_failure(bool holds_order) {
  ALQ_TRY(board->cause());
  if (auto mismatch = board->compare()) {
    return make_error(ALQ_RANK_MISMATCH, "{}", mismatch->text)
        .with_rank(world_rank(mismatch->rank));
  }
  ALQ_TRY(control->status());
  auto op = oldest();
  ALQ_TRY(device_failure());
  if (!holds_order) ALQ_TRY(async_failure());
  if (!op.has_value()) return {};
  ALQ_TRY(abandoned(*op));
  return overdue(*op);
}

Status NcclCore::async_failure() {
  // Whoever has the order sees errors itself.
  auto lock = runtime->try_lock();
  const CommHandle comm = comm_.load();
  if (!lock.owns_lock() || comm == nullptr) return {};
  NcclResult state = kSuccess;
  NcclResult result = runtime->api.async_error(comm, &state);
  if (result == kSuccess && (state == kSuccess || state == kInProgress)) {
    return {};
  }
  Status error =
      runtime->error("NCCL reports", result == kSuccess ? state : result, comm);
  // Ranks that called different things make NCCL fail in many ways.
  if (auto mismatch = board->compare()) {
    return make_error(ALQ_RANK_MISMATCH, "{}", mismatch->text)
        .with_rank(world_rank(mismatch->rank));
  }
  lock.unlock();
  auto op = oldest();
  return make_error(
             error.code(), "{}: rank {} says: {}",
             op.has_value() ? what(*op) : fmt::format("group \"{}\"", name),
             world_rank(rank), error.message())
      .with_native(error.domain(), error.native_code())
      .with_rank(world_rank(rank));
}

Status NcclCore::device_failure() const {
  Status lost = runtime->port.healthy();
  if (lost.ok()) return lost;
  return make_error(lost.code(), "group \"{}\": rank {} says: {}", name,
                    world_rank(rank), lost.message())
      .with_native(lost.domain(), lost.native_code())
      .with_rank(world_rank(rank));
}

// A rank that released the group before it came to the operation.
Status NcclCore::abandoned(const Tracked& op) {
  for (int32_t q = 0; q < size; ++q) {
    if (q == rank || !board->left(q)) continue;
    if (op.number == 0 ? q != op.peer : board->published(q) >= op.number) {
      continue;
    }
    return make_error(ALQ_PEER_FAILED,
                      "rank {} left (released the group) before it took part "
                      "in {}",
                      world_rank(q), what(op))
        .with_rank(world_rank(q));
  }
  return {};
}

Status NcclCore::overdue(const Tracked& op) {
  const int64_t waited = now_ns() - op.since;
  if (waited < timeout_ns.load()) return {};
  std::vector<int32_t> late;
  for (int32_t q = 0; q < size; ++q) {
    if (q == rank) continue;
    bool missing =
        op.number == 0 ? q == op.peer : board->published(q) < op.number;
    if (missing) late.push_back(world_rank(q));
  }
  if (late.empty()) {
    return make_error(ALQ_DEADLINE_EXCEEDED,
                      "{} is not done after {} ms though all ranks issued it, "
                      "says rank {}; look at what their streams wait for, or "
                      "allow more time",
                      what(op), waited / 1'000'000, world_rank(rank));
  }
  return make_error(ALQ_DEADLINE_EXCEEDED,
                    "{}: rank(s) {} have not arrived after {} ms, says rank "
                    "{}; look at what they are doing, or allow more time",
                    what(op), fmt::join(late, ", "), waited / 1'000'000,
                    world_rank(rank))
      .with_rank(late[0]);
}

}  // namespace aliquot::nccl
