// Rendezvous: the sender describes its data in the channel of the pair and
// waits until the receiver has taken it, directly from the sender's memory.
// Up to 4 KiB travel in the channel itself.  Memory that can be neither mapped
// nor read passes through the channel in 4 KiB windows.  Cost: one copy by the
// receiver; two flags.
#include "comm/mem/p2p.h"

#include <algorithm>
#include <cstring>

#include "comm/mem/call.h"
#include "comm/mem/poison.h"
#include "comm/mem/whereabouts.h"

namespace aliquot::mem {
namespace {

constexpr int64_t kBlock = int64_t{1} << 20;
constexpr int64_t kDyingNs = 1'000'000'000;
constexpr int64_t kLongNs = 2'000'000;  // as in coll_op.cc

Channel& channel_of(const GroupCore& core, const Coll& coll) {
  return coll.kind == CollKind::kSend
             ? core.control.channel(core.rank, coll.root)
             : core.control.channel(coll.root, core.rank);
}

std::atomic<uint64_t>& turn_of(GroupCore& core, const Coll& coll) {
  PairTurns& pair = core.pairs[static_cast<size_t>(coll.root)];
  return coll.kind == CollKind::kSend ? pair.send_turn : pair.recv_turn;
}

}  // namespace

P2pOp::P2pOp(GroupCore& core, std::shared_ptr<GroupCore> keep, const Coll& coll,
             uint64_t number, std::shared_ptr<WorkState> work)
    : core_(core),
      keep_(std::move(keep)),
      coll_(coll),
      number_(number),
      work_(std::move(work)),
      recorded_(record(core, coll, number)),
      sends_(coll.kind == CollKind::kSend),
      bytes_(coll.count * dtype_size(coll.dtype)),
      channel_(channel_of(core, coll)),
      turn_(turn_of(core, coll)),
      peer_bell_(core.bell(coll.root)) {
  call_ = {};
  call_.kind = static_cast<int32_t>(coll.kind);
  call_.dtype = call_.out_dtype = coll.dtype;
  call_.count = coll.count;
}

P2pOp::~P2pOp() {
  const bool announced = state_ != State::kTurn && state_ != State::kDone;
  if (announced && sends_ && in_process()) withdraw();
  if (work_ != nullptr && !work_->done.load()) {
    work_->status = make_error(ALQ_CANCELLED,
                               "a {} of group \"{}\" was dropped with its "
                               "stream's context",
                               coll_name(coll_.kind), core_.name);
    work_->done.store(true);
  }
}

bool P2pOp::in_process() const {
  return core_.pid(coll_.root) == core_.pid(core_.rank);
}

// The receiver is a thread of this process, and may be in our src.
bool P2pOp::read_here() const {
  return in_process() &&
         core_.control.member(coll_.root).reading.value.load() != 0;
}

// Dropped while the receiver may come to it.
void P2pOp::withdraw() {
  if (core_.world->forked()) return;
  poison_by_leaving(core_, what());
  const Deadline until = Deadline::after(kDyingNs);
  while (read_here() && !until.passed()) usleep(50);
}

void P2pOp::publish(Line& line, uint64_t value) {
  line.value.store(value);
  counts_.syscalls += ring(peer_bell_);
}

void P2pOp::post() {
  if (state_ == State::kTurn && turn_.load() == number_ && !poisoned(core_)) {
    announce();
  }
}

void P2pOp::announce() {
  state_ = State::kMeet;
  mark_seen(core_);
  if (!sends_) return;
  channel_.call = call_;
  Location at{};
  if (bytes_ > 0 && bytes_ <= kInlineBytes) {
    std::memcpy(channel_.payload, coll_.src, static_cast<size_t>(bytes_));
    counts_.bytes_read += bytes_;
    counts_.bytes_written += bytes_;
  } else if (bytes_ > 0) {
    segment_ = locate(core_, coll_.src, bytes_, &at, &channel_.backing);
  }
  bool same_process = core_.pid(coll_.root) == core_.pid(core_.rank);
  staged_ = at.kind == kPrivate && !same_process && !core_.world->cma;
  channel_.src = at;
  publish(channel_.seq, number_);
  recorded(core_, recorded_, kFlightArrived);
}

Step P2pOp::step(bool slow) {
  if (state_ == State::kTurn) {
    if (turn_.load() != number_ || poisoned(core_)) return waiting(slow);
    announce();
  }
  if (state_ == State::kDying) return dying();
  return sends_ ? step_send(slow) : step_recv(slow);
}

Step P2pOp::step_send(bool slow) {
  Context& context = *core_.world->context;
  if (state_ == State::kMeet) {
    state_ = State::kMove;
    Status status = context.faults.point("coll.posted");
    if (!status.ok()) return fail(std::move(status));
  }
  if (channel_.taken.value.load() >= number_) {
    Status status = context.faults.point("coll.done");
    return status.ok() ? finish() : fail(std::move(status));
  }
  if (staged_) {
    Status status = context.faults.point("coll.data");
    if (!status.ok()) return fail(std::move(status));
    Step step = fill_staged();
    if (step != Step::kWaiting) return step;
  }
  return waiting(slow);
}

Step P2pOp::step_recv(bool slow) {
  if (state_ == State::kMeet) {
    if (channel_.seq.value.load() < number_) return waiting(slow);
    Status status = core_.world->context->faults.point("coll.posted");
    if (status.ok()) status = compare();
    if (status.ok()) status = resolve();
    if (!status.ok()) return fail(std::move(status));
    state_ = State::kMove;
  }
  return staged_ ? move_staged(slow) : move(slow);
}

Status P2pOp::compare() const {
  const Call sent = channel_.call;
  if (sent.count == call_.count && sent.dtype == call_.dtype) return {};
  return make_error(ALQ_RANK_MISMATCH,
                    "group \"{}\": send {} from rank {} to rank {} is {}, the "
                    "recv is {}; count and dtype must agree",
                    core_.name, number_, core_.world_rank(coll_.root),
                    core_.world_rank(core_.rank), call_text(sent),
                    call_text(call_))
      .with_rank(core_.world_rank(coll_.root));
}

Status P2pOp::resolve() {
  if (bytes_ <= kInlineBytes) {
    base_ = channel_.payload;
    return {};
  }
  const Location at = channel_.src;
  bool same_process = core_.pid(coll_.root) == core_.pid(core_.rank);
  core_.world->maps.enter();
  mapped_ = true;
  reading_ = same_process;
  if (at.bytes != bytes_) {
    return make_error(ALQ_INTERNAL, "rank {} announced {} bytes of {}",
                      core_.world_rank(coll_.root), at.bytes, bytes_)
        .with_rank(core_.world_rank(coll_.root));
  }
  if (at.kind == kInSegment) {
    const SegmentRef ref = segment_at(at, channel_.backing);
    ALQ_TRY(check_within(core_, coll_.root, at, ref.bytes));
    if (ref.pid == core_.pid(core_.rank)) {
      ALQ_ASSIGN(held_, hold_segment(core_, coll_.root, ref));
      base_ = held_->data() + at.at;
    } else {
      ALQ_ASSIGN(std::byte * data, map_peer(core_, coll_.root, ref));
      base_ = data + at.at;
    }
  } else if (same_process) {
    base_ = reinterpret_cast<const std::byte*>(at.at);
  } else {
    staged_ = !core_.world->cma;
  }
  return {};
}

Step P2pOp::move(bool slow) {
  Context& context = *core_.world->context;
  Status status = context.faults.point("coll.data");
  if (!status.ok()) return fail(std::move(status));
  if (poisoned(core_)) return waiting(slow);
  int64_t n = std::min(bytes_ - pos_, kBlock);
  auto* to = static_cast<std::byte*>(coll_.dst) + pos_;
  if (n > 0 && base_ != nullptr) {
    if (reading_) {
      core_.self().reading.value.fetch_add(1);
      if (poisoned(core_)) n = 0;
    }
    std::memcpy(to, base_ + pos_, static_cast<size_t>(n));
    if (reading_) core_.self().reading.value.fetch_sub(1);
    if (n == 0) return waiting(slow);
  } else if (n > 0) {
    const uint64_t from = channel_.src.at + static_cast<uint64_t>(pos_);
    const int err =
        read_process(core_.pid(coll_.root), from, to, n, &counts_.syscalls);
    if (err != 0) {
      return fail(read_error(
          *core_.world, {core_.world_rank(coll_.root), from, n}, err, what()));
    }
  }
  pos_ += n;
  counts_.bytes_read += n;
  counts_.bytes_written += n;
  counts_.peer_bytes_read += n;
  if (pos_ < bytes_) return Step::kProgress;
  status = context.faults.point("coll.done");
  if (!status.ok()) return fail(std::move(status));
  // A group that failed meanwhile has let go of the memory that was read.
  if (mapped_ && poisoned(core_)) return fail({});
  publish(channel_.taken, number_);
  return finish();
}

// The sender's side of a staged message: one window at a time.
Step P2pOp::fill_staged() {
  if (pos_ == bytes_) return Step::kWaiting;
  if (window_ > 0 &&
      channel_.consumed.value.load() < ticket(number_, window_)) {
    return Step::kWaiting;
  }
  int64_t n = std::min(bytes_ - pos_, kInlineBytes);
  std::memcpy(channel_.payload, static_cast<const std::byte*>(coll_.src) + pos_,
              static_cast<size_t>(n));
  counts_.bytes_read += n;
  counts_.bytes_written += n;
  pos_ += n;
  ++window_;
  publish(channel_.staged, ticket(number_, window_));
  return Step::kProgress;
}

Step P2pOp::move_staged(bool slow) {
  Status status = core_.world->context->faults.point("coll.data");
  if (!status.ok()) return fail(std::move(status));
  if (channel_.staged.value.load() < ticket(number_, window_ + 1)) {
    return waiting(slow);
  }
  int64_t n = std::min(bytes_ - pos_, kInlineBytes);
  std::memcpy(static_cast<std::byte*>(coll_.dst) + pos_, channel_.payload,
              static_cast<size_t>(n));
  counts_.bytes_read += n;
  counts_.bytes_written += n;
  counts_.peer_bytes_read += n;
  pos_ += n;
  ++window_;
  publish(channel_.consumed, ticket(number_, window_));
  if (pos_ < bytes_) return Step::kProgress;
  status = core_.world->context->faults.point("coll.done");
  if (!status.ok()) return fail(std::move(status));
  publish(channel_.taken, number_);
  return finish();
}

Step P2pOp::waiting(bool slow) {
  if (poisoned(core_)) return fail({});
  if (!slow) return Step::kWaiting;
  Status status = slow_checks();
  return status.ok() ? Step::kWaiting : fail(std::move(status));
}

std::string P2pOp::what() const {
  return fmt::format("{} {} ({}{}) {} rank {} of group \"{}\"",
                     coll_name(coll_.kind), number_, call_text(call_),
                     label_text(coll_.label), sends_ ? "to" : "from",
                     core_.world_rank(coll_.root), core_.name);
}

Status P2pOp::slow_checks() {
  int64_t now = now_ns();
  if (started_ == 0) started_ = now;
  if (deadline_ == 0) {
    deadline_ = Deadline::after(core_.timeout_ns.load()).at();
  }
  int32_t peer = core_.world_rank(coll_.root);
  if (now - started_ > kLongNs) {
    mark_seen(core_, peer);
    if (!said_where_) say_where(core_, "waiting in " + what());
    said_where_ = true;
  }
  MemberState state = core_.state(coll_.root);
  bool came = sends_ ? channel_.taken.value.load() >= number_
                     : channel_.seq.value.load() >= number_;
  if ((state == kLeft || state == kClosed) && !came && state_ != State::kTurn) {
    return make_error(ALQ_PEER_FAILED, "rank {} {} before it took part in {}",
                      peer,
                      state == kLeft ? "left (released its context)"
                                     : "closed the group",
                      what())
        .with_rank(peer);
  }
  if (now < deadline_) return {};
  return make_error(ALQ_DEADLINE_EXCEEDED,
                    "{}: rank(s) {} have not arrived after {} ms, says rank "
                    "{}{}; look at what they are doing, or allow more time",
                    what(), peer, (now - started_) / 1'000'000,
                    core_.world_rank(core_.rank), late_text(core_, peer))
      .with_rank(last_in_line(core_, peer));
}

Step P2pOp::fail(Status status) {
  status_ = fail_operation(core_, status);
  state_ = State::kDying;
  started_ = now_ns();
  return dying();
}

Step P2pOp::dying() {
  const bool waits = now_ns() - started_ < kDyingNs && read_here();
  return waits ? Step::kWaiting : finish();
}

Step P2pOp::finish() {
  if (mapped_) core_.world->maps.leave(*core_.world);
  bool failed = state_ == State::kDying;
  if (said_where_) {
    say_where(core_, failed ? "after giving up " + what() : "");
    if (!failed) mark_seen(core_);
  }
  state_ = State::kDone;
  counts_.ops = 1;
  core_.stats.add(counts_);
  recorded(core_, recorded_, failed ? kFlightError : kFlightDone);
  if (!failed) turn_.store(number_ + 1);
  if (work_ != nullptr) {
    work_->status = status_;
    work_->done.store(true);
  }
  core_.world->runner->ring_self();
  return failed ? Step::kFailed : Step::kDone;
}

}  // namespace aliquot::mem
