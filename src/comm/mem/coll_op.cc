#include "comm/mem/coll_op.h"

#include <algorithm>
#include <cstring>

#include "comm/mem/algorithms.h"
#include "comm/mem/call.h"
#include "comm/mem/poison.h"
#include "comm/mem/ways.h"
#include "comm/mem/whereabouts.h"

namespace aliquot::mem {
namespace {

// From here on a wait is worth telling the peers.
constexpr int64_t kLongNs = 2'000'000;

}  // namespace

CollOp::CollOp(GroupCore& group_core, std::shared_ptr<GroupCore> keep,
               const Coll& c, int32_t flags, uint64_t n,
               std::shared_ptr<WorkState> work)
    : core(group_core),
      coll(c),
      number(n),
      me(core.rank),
      size(core.size),
      in_size(dtype_size(c.dtype)),
      out_size(dtype_size(c.out_dtype)),
      keep_(std::move(keep)),
      work_(std::move(work)),
      flags_(flags | (c.accumulate ? kCallAccumulate : 0) |
             (c.factor.has_value() ? kCallPremul : 0)),
      recorded_(record(core, c, n)) {
  if (!c.counts.empty()) {
    std::copy(c.counts.begin(), c.counts.end(), own_counts_);
    coll.counts = {own_counts_, c.counts.size()};
  }
  if (!c.recv_counts.empty()) {
    std::copy(c.recv_counts.begin(), c.recv_counts.end(), own_recv_counts_);
    coll.recv_counts = {own_recv_counts_, c.recv_counts.size()};
  }
  if (c.kind == CollKind::kAllReduce) chunk_ = reduce_chunk(c.count, size);
  describe();
  int64_t payload = part_total() * in_size;
  if (c.kind == CollKind::kAllGather || c.kind == CollKind::kGather) {
    payload = 0;
    for (int32_t q = 0; q < size; ++q) {
      payload = std::max(payload, part_count(q) * in_size);
    }
  }
  inlined_ =
      payload <= kInlineBytes && size > 1 && c.kind != CollKind::kAllToAllV;
}

CollOp::~CollOp() {
  // Peers may read its src where they are threads of this process, and write
  // its dst.
  const bool announced = state_ != State::kTurn && state_ != State::kDone;
  const bool exposed = exposes_dst_ || (core.shares_process && !inlined_);
  if (announced && exposed) withdraw();
  if (work_ != nullptr && !work_->done.load()) {
    work_->status = make_error(ALQ_CANCELLED,
                               "operation {} of group \"{}\" was dropped with "
                               "its stream's context",
                               number, core.name);
    work_->done.store(true);
  }
}

int64_t CollOp::part_begin(int32_t q) const {
  if (coll.kind == CollKind::kAllReduce) {
    return std::min(q * chunk_, coll.count);
  }
  if (coll.kind == CollKind::kBroadcast) return q == 0 ? 0 : coll.count;
  // The root owns all of it.
  if (coll.kind == CollKind::kReduce) return q <= coll.root ? 0 : coll.count;
  if (coll.counts.empty()) return q * coll.count;
  int64_t begin = 0;
  for (int32_t i = 0; i < q; ++i) begin += coll.counts[static_cast<size_t>(i)];
  return begin;
}

int64_t CollOp::part_count(int32_t q) const {
  if (coll.kind == CollKind::kAllReduce || coll.kind == CollKind::kReduce) {
    return part_begin(q + 1) - part_begin(q);
  }
  if (coll.counts.empty()) return coll.count;
  return coll.counts[static_cast<size_t>(q)];
}

void CollOp::describe() {
  call_ = {};
  call_.kind = static_cast<int32_t>(coll.kind);
  call_.dtype = coll.dtype;
  call_.out_dtype = coll.out_dtype;
  call_.op = is_reduction(coll.kind) ? coll.op : 0;
  call_.root = is_rooted(coll.kind) ? coll.root : 0;
  call_.flags = flags_;
  if (coll.kind == CollKind::kAllToAllV) {  // counts differ between ranks
    seal_call(&call_, {});
    return;
  }
  call_.count = coll.counts.empty() ? coll.count : part_total();
  seal_call(&call_, coll.counts);
}

void CollOp::announce() {
  state_ = State::kArrive;
  if (size == 1) return;
  Slot& slot = core.control.slot(me, number);
  std::copy(call_.hash, call_.hash + 2, slot.hash);
  slot.call = call_;
  set_label(slot, coll.label);
  mark_seen(core);
  slot.factor = coll.factor.value_or(1.0);
  if (inlined_) {
    counted_copy(*this, slot.payload, coll.src, readable_bytes(), false);
  } else {
    announce_memory();
    if (me == 0) choose_ways();
    if (coll.kind == CollKind::kAllToAllV) announce_pairs();
  }
  slot.seq.store(number);
  recorded(core, recorded_, kFlightArrived);
  counts.syscalls += core.ring_peers();
}

void CollOp::post() {
  if (state_ != State::kTurn || core.turn.load() != number || poisoned(core)) {
    return;
  }
  announce();
}

Step CollOp::step(bool slow) {
  if (state_ == State::kTurn) {
    if (core.turn.load() != number || poisoned(core)) return waiting(slow);
    announce();
  }
  if (state_ == State::kArrive) {
    if (!reached(nullptr, number)) return waiting(slow);
    Status status = core.world->context->faults.point("coll.posted");
    if (status.ok()) status = compare();
    if (status.ok() && coll.kind == CollKind::kAllToAllV) {
      status = compare_pairs(*this);
    }
    if (!status.ok()) return fail(std::move(status));
    Step step = choose();
    if (step == Step::kFailed) return step;
  }
  if (state_ == State::kRun) {
    Step step = run();
    if (state_ == State::kDying) return step;
    if (step == Step::kWaiting) return waiting(slow);
    if (step != Step::kDone) return step;
  }
  if (state_ == State::kDrain) {
    if (drain_ && !reached(&Member::done, number)) return waiting(slow);
    return finish();
  }
  if (state_ == State::kDying) return dying();
  return Step::kDone;
}

bool CollOp::reached(Line Member::*which, uint64_t value) {
  for (; cursor_ < size; ++cursor_) {
    if (cursor_ == me) continue;
    uint64_t now = which == nullptr
                       ? core.control.slot(cursor_, number).seq.load()
                       : (core.control.member(cursor_).*which).value.load();
    if (now < value) {
      awaited_ = which;
      awaited_value_ = value;
      return false;
    }
  }
  cursor_ = 0;
  return true;
}

bool CollOp::peer_reached(int32_t q, Line Member::*which, uint64_t value) {
  if ((core.control.member(q).*which).value.load() >= value) return true;
  awaited_ = which;
  awaited_value_ = value;
  return false;
}

bool CollOp::awaits(int32_t q) const {
  if (q == me) return false;
  uint64_t now = awaited_ == nullptr
                     ? core.control.slot(q, number).seq.load()
                     : (core.control.member(q).*awaited_).value.load();
  return now < awaited_value_;
}

void CollOp::publish(Line Member::*which, uint64_t value) {
  (core.self().*which).value.store(value);
  counts.syscalls += core.ring_peers();
}

Status CollOp::compare() {
  const uint64_t* hash = slot(0).hash;
  for (int32_t q = 1; q < size; ++q) {
    if (std::equal(hash, hash + 2, slot(q).hash)) continue;
    const Call first = slot(0).call, other = slot(q).call;
    std::string a = call_text(first), b = call_text(other);
    if (a == b) b += " with other counts";
    a += label_text(slot(0).label);
    b += label_text(slot(q).label);
    return make_error(ALQ_RANK_MISMATCH,
                      "operation {} of group \"{}\": rank {} called {}, rank "
                      "{} called {}; all ranks must make the same calls in the "
                      "same order",
                      number, core.name, core.world_rank(0), a,
                      core.world_rank(q), b)
        .with_rank(core.world_rank(q));
  }
  return {};
}

Step CollOp::choose() {
  state_ = State::kRun;
  const Algorithm& chosen = algorithm(coll.kind);
  if (inlined_) {
    run_ = chosen.inlined;
    return Step::kProgress;
  }
  bool foreign_private = false;
  const World& world = *core.world;
  for (int32_t q = 0; q < size && size > 1 && !core.one_process; ++q) {
    foreign_private |=
        slot(q).src.kind == kPrivate || slot(q).dst_kind == kPrivate;
  }
  const Slot& first = slot(0);
  way_ = foreign_private ? first.private_way : first.mapped_way;
  if (foreign_private) moved_ = private_kind();
  const bool results = coll.kind == CollKind::kAllReduce && size > 1;
  pushes = results && !foreign_private && world.pushes;
  // Pushed in place, results go where sources were read: into the caches.
  const bool open = foreign_private || (results && !(pushes && in_place()));
  if (world.rank == 0 && open && coll.kind != CollKind::kAllToAllV) {
    moving_ = now_ns();
  }
  if (foreign_private && !reads(way_)) {
    run_ = chosen.staged;
    streams_stage = way_ == kStreamed;
    return Step::kProgress;
  }
  run_ = chosen.direct;
  streams_dst = results && open && (way_ == kStreamed || way_ == kReadStreamed);
  bool read_by_peers = readable_bytes() > 0;
  drain_ = size > 1 && read_by_peers &&
           (coll.kind == CollKind::kAllReduce || !coll.source_stable);
  core.world->maps.enter();
  mapped_ = true;
  reading_ = size > 1 && core.shares_process;
  Status status = resolve(&Slot::src);
  return status.ok() ? Step::kProgress : fail(std::move(status));
}

Step CollOp::run() {
  if (pushes) core.self().writing.value.store(number);
  Status status = core.world->context->faults.point("coll.data");
  if (reading_) core.self().reading.value.fetch_add(1);
  const bool late = (reading_ || pushes) && poisoned(core);
  Step step = status.ok() && !late ? run_(*this) : Step::kWaiting;
  if (reading_) core.self().reading.value.fetch_sub(1);
  if (pushes) core.self().writing.value.store(0);
  if (!status.ok()) return fail(std::move(status));
  if (late) return fail({});
  if (step == Step::kProgress && poisoned(core)) return fail({});
  if (step != Step::kDone) return step;
  status = core.world->context->faults.point("coll.done");
  if (!status.ok()) return fail(std::move(status));
  // A group that failed meanwhile has let go of the memory that was read.
  if (mapped_ && poisoned(core)) return fail({});
  if (run_ == algorithm(coll.kind).direct && size > 1) {
    publish(&Member::done, number);
  }
  settle();
  state_ = State::kDrain;
  return Step::kDone;
}

Step CollOp::waiting(bool slow) {
  if (poisoned(core)) return fail({});
  if (!slow) return Step::kWaiting;
  Status status = slow_checks();
  return status.ok() ? Step::kWaiting : fail(std::move(status));
}

std::string CollOp::what() const {
  return fmt::format("operation {} ({}{}) of group \"{}\"", number,
                     call_text(call_), label_text(coll.label), core.name);
}

Status CollOp::slow_checks() {
  int64_t now = now_ns();
  if (started_ == 0) started_ = now;
  if (deadline_ == 0) {
    deadline_ = Deadline::after(core.timeout_ns.load()).at();
  }
  std::vector<int32_t> late;
  for (int32_t q = 0; q < size && state_ != State::kTurn; ++q) {
    if (!awaits(q)) continue;
    MemberState state = core.state(q);
    // What it did before it left counts.
    if ((state == kLeft || state == kClosed) && awaits(q)) {
      return make_error(ALQ_PEER_FAILED, "rank {} {} before it took part in {}",
                        core.world_rank(q),
                        state == kLeft ? "left (released its context)"
                                       : "closed the group",
                        what())
          .with_rank(core.world_rank(q));
    }
    late.push_back(core.world_rank(q));
  }
  if (now - started_ > kLongNs) {
    mark_seen(core, late.empty() ? -1 : late[0]);
    if (!said_where_) say_where(core, "waiting in " + what());
    said_where_ = true;
  }
  if (now < deadline_) return {};
  int64_t ms = (now - started_) / 1'000'000;
  if (state_ == State::kTurn) {
    return make_error(ALQ_DEADLINE_EXCEEDED,
                      "{} waited {} ms for earlier operations of the group",
                      what(), ms);
  }
  return make_error(ALQ_DEADLINE_EXCEEDED,
                    "{}: rank(s) {} {} after {} ms, says rank {}{}; look at "
                    "what they are doing, or allow more time",
                    what(), fmt::join(late, ", "),
                    state_ == State::kArrive ? "have not arrived"
                                             : "have not finished",
                    ms, core.world_rank(me),
                    late.empty() ? "" : late_text(core, late[0]))
      .with_rank(late.empty() ? -1 : last_in_line(core, late[0]));
}

// An error that is not the group's yet becomes it.
Step CollOp::fail(Status status) {
  status_ = fail_operation(core, status);
  state_ = State::kDying;
  started_ = now_ns();
  return dying();
}

Step CollOp::dying() {
  const bool waits = now_ns() - started_ < kMemoryNs && memory_in_use();
  return waits ? Step::kWaiting : finish();
}

void CollOp::settle() {
  if (settled_) return;
  settled_ = true;
  if (mapped_) core.world->maps.leave(*core.world);
  counts.ops = 1;
  core.stats.add(counts);
}

Step CollOp::finish() {
  settle();
  bool failed = state_ == State::kDying;
  if (moving_ != 0 && !failed) {
    uint64_t like = static_cast<uint64_t>(part_total() * in_size);
    like = like << 10 | static_cast<uint64_t>(coll.kind) << 6 |
           static_cast<uint64_t>(size - 1);
    try_ways(*core.world, moved_kind(moved_, largest_part(*this)), way_, like,
             moving_);
  }
  if (said_where_) {
    say_where(core, failed ? "after giving up " + what() : "");
    if (!failed) mark_seen(core);
  }
  state_ = State::kDone;
  recorded(core, recorded_, failed ? kFlightError : kFlightDone);
  if (!failed) core.turn.store(number + 1);
  if (work_ != nullptr) {
    work_->status = status_;
    work_->done.store(true);
  }
  core.world->runner->ring_self();
  return failed ? Step::kFailed : Step::kDone;
}

}  // namespace aliquot::mem
