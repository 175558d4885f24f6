#include "comm/mem/shrink.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/process.h"
#include "base/text.h"
#include "comm/mem/group.h"
#include "comm/mem/poison.h"
#include "comm/mem/watchdog.h"

namespace aliquot::mem {
namespace {

// What is kept of the time for agreeing once nobody is waited for any more.
constexpr int64_t kReserveNs = 2'000'000'000;
// How long a process may take to end.
constexpr int64_t kEndingNs = 500'000'000;

constexpr uint64_t bit(int32_t rank) { return uint64_t{1} << rank; }

class Agreement {
 public:
  Agreement(GroupCore& core, Deadline deadline)
      : core_(core),
        deadline_(deadline),
        result_(core.control.shrunk()),
        all_(core.size == 64 ? ~uint64_t{0} : bit(core.size) - 1),
        me_(bit(core.rank)),
        aborts_(core.aborts.load()),
        ask_until_(deadline.at() - std::min(deadline.left() / 4, kReserveNs)) {}

  Result<Shrunk> run();

 private:
  Status join();
  Status make();
  bool maker_ends();
  Status settle();
  Step settled(bool slow, bool until_made);
  void propose();
  void refuse(const Status& why);
  Status refusal() const;
  Status give_up(Status why);
  Status overdue() const;
  bool decide(ShrinkOutcome outcome);
  uint64_t gone(uint64_t ranks);
  bool is_gone(int32_t q);
  uint64_t members() const { return try_->members.load() & all_; }
  ShrinkOutcome outcome() const {
    return static_cast<ShrinkOutcome>(try_->outcome.load());
  }
  bool aborted() const { return core_.aborts.load() != aborts_; }

  GroupCore& core_;
  const Deadline deadline_;
  ShrinkResult& result_;
  const uint64_t all_, me_, aborts_;
  const int64_t ask_until_;
  ShrinkTry* try_ = nullptr;
  std::shared_ptr<Segment> segment_;
  uint64_t dead_ = 0;
  int64_t stopped_since_[kMaxRanks] = {};
};

Result<Shrunk> Agreement::run() {
  if ((result_.left.load() & me_) != 0) {
    return make_error(ALQ_PEER_FAILED,
                      "rank {} gave up shrinking group \"{}\" earlier; the "
                      "others go on without it",
                      core_.world_rank(core_.rank), core_.name)
        .with_rank(core_.world_rank(core_.rank));
  }
  for (int32_t& i = core_.next_try; i < core_.control.tries(); ++i) {
    try_ = &core_.control.shrink_try(i);
    segment_.reset();
    ALQ_TRY(join());
    bool member = (members() & me_) != 0;
    if (member) ALQ_TRY(make());
    ALQ_TRY(settle());
    if (outcome() == kRefused && member) {
      ++i;
      return refusal();
    }
    if (outcome() != kCommitted) continue;
    result_.members.store(members());
    if (!member) return poison_cause(core_);
    Shrunk shrunk{segment_, {}};
    for (int32_t q = 0; q < core_.size; ++q) {
      if ((members() & bit(q)) != 0) shrunk.members.push_back(q);
    }
    return shrunk;
  }
  return make_error(ALQ_RESOURCE_EXHAUSTED,
                    "group \"{}\": {} tries to shrink it have failed; restart "
                    "the job",
                    core_.name, core_.control.tries());
}

// Comes, and waits until it is decided who goes on.
Status Agreement::join() {
  Status fault = core_.world->context->faults.point("shrink.join");
  if (!fault.ok()) return give_up(std::move(fault));
  try_->joined.fetch_or(me_);
  core_.ring_peers();
  auto poll = [this](bool slow) {
    if (members() != 0) return Step::kDone;
    if (aborted()) return Step::kFailed;
    uint64_t absent = all_ & ~try_->joined.load() & ~result_.left.load();
    if (absent != 0 && slow) absent &= ~gone(absent);
    if (absent != 0 && (!slow || now_ns() < ask_until_)) return Step::kWaiting;
    propose();
    return Step::kDone;
  };
  core_.world->runner->wait(Poll(poll), deadline_);
  return members() != 0 ? Status() : give_up(overdue());
}

void Agreement::propose() {
  uint64_t came = try_->joined.load() & ~result_.left.load() & all_;
  came &= ~gone(came & ~me_);
  uint64_t none = 0;
  try_->members.compare_exchange_strong(none, came);
  core_.ring_peers();
}

// The lowest member makes the new block, the others map it.
Status Agreement::make() {
  auto size = std::popcount(members());
  std::string name = generation_name(core_.base, core_.generation + 1);
  Status status = core_.world->context->faults.point("shrink.make");
  if (!status.ok()) return give_up(std::move(status));
  bool leads = (members() & (me_ - 1)) == 0;
  if (leads) {
    auto made = make_control(size, name);
    status = made.status();
    if (made.ok()) {
      segment_ = *made;
      try_->block = segment_->ref();
      try_->made.store(1);
      core_.ring_peers();
    }
  } else {
    auto poll = [this](bool slow) { return settled(slow, true); };
    core_.world->runner->wait(Poll(poll), deadline_);
    if (outcome() != kUndecided || try_->made.load() == 0) return {};
    auto attached = Segment::attach(try_->block);
    status = attached.status();
    if (attached.ok()) segment_ = *attached;
    if (!attached.ok() && maker_ends()) {
      decide(kAbandoned);
      return {};
    }
    if (status.ok()) status = check_control(*segment_, size, name);
  }
  if (!status.ok()) {
    refuse(status);
    return {};
  }
  auto rank = std::popcount(members() & (me_ - 1));
  Control(segment_->data(), size).member(rank).state.value.store(kAttached);
  try_->attached.fetch_or(me_);
  core_.ring_peers();
  status = core_.world->context->faults.point("shrink.commit");
  return status.ok() ? status : give_up(std::move(status));
}

// Whether the maker of the new block is no more.  A process loses its files a
// moment before it counts as ended.
bool Agreement::maker_ends() {
  auto poll = [this](bool slow) {
    if (outcome() != kUndecided) return Step::kDone;
    return slow && gone(members() & (~members() + 1)) != 0 ? Step::kDone
                                                           : Step::kWaiting;
  };
  return core_.world->runner->wait(Poll(poll), Deadline::after(kEndingNs));
}

// Waits for the outcome.
Status Agreement::settle() {
  auto poll = [this](bool slow) { return settled(slow, false); };
  core_.world->runner->wait(Poll(poll), deadline_);
  return outcome() != kUndecided ? Status() : give_up(overdue());
}

Step Agreement::settled(bool slow, bool until_made) {
  if (outcome() != kUndecided) return Step::kDone;
  if (until_made && try_->made.load() != 0) return Step::kDone;
  if ((try_->attached.load() & members()) == members()) {
    decide(kCommitted);
    return Step::kDone;
  }
  if (aborted()) return Step::kFailed;
  if (!slow) return Step::kWaiting;
  uint64_t others = members() & ~me_;
  if ((others & result_.left.load()) == 0 && gone(others) == 0) {
    return Step::kWaiting;
  }
  decide(kAbandoned);
  return Step::kDone;
}

// True if this rank was first.
bool Agreement::decide(ShrinkOutcome outcome) {
  uint32_t none = kUndecided;
  bool first = try_->outcome.compare_exchange_strong(none, outcome);
  core_.ring_peers();
  return first;
}

// This rank can not take part, for a reason that all members are told.
void Agreement::refuse(const Status& why) {
  if (try_->refusing.exchange(1) != 0) return;
  try_->code = why.code();
  try_->rank = core_.world_rank(core_.rank);
  copy_text(try_->text, why.message());
  decide(kRefused);
}

Status Agreement::refusal() const {
  char text[sizeof try_->text];
  std::memcpy(text, try_->text, sizeof text);
  text[sizeof text - 1] = '\0';
  return make_error(try_->code,
                    "shrinking group \"{}\": rank {}: {}; all may try again",
                    core_.name, try_->rank, text)
      .with_rank(try_->rank);
}

// Out for good, unless the others have committed with this rank meanwhile.
Status Agreement::give_up(Status why) {
  result_.left.fetch_or(me_);
  if ((members() & me_) != 0) decide(kAbandoned);
  core_.ring_peers();
  return outcome() == kCommitted ? Status() : why;
}

Status Agreement::overdue() const {
  if (aborted()) {
    return make_error(ALQ_ABORTED, "shrinking group \"{}\" was aborted",
                      core_.name);
  }
  uint64_t came = members() != 0 ? try_->attached.load() : try_->joined.load();
  uint64_t awaited = (members() != 0 ? members() : all_) & ~came;
  std::vector<int32_t> late;
  for (int32_t q = 0; q < core_.size; ++q) {
    if ((awaited & bit(q)) != 0) late.push_back(core_.world_rank(q));
  }
  return make_error(ALQ_DEADLINE_EXCEEDED,
                    "shrinking group \"{}\": rank(s) {} did not take part in "
                    "time; allow more",
                    core_.name, fmt::join(late, ", "))
      .with_rank(late.empty() ? -1 : late[0]);
}

uint64_t Agreement::gone(uint64_t ranks) {
  uint64_t out = 0;
  for (int32_t q = 0; q < core_.size; ++q) {
    if ((ranks & bit(q)) != 0 && is_gone(q)) out |= bit(q);
  }
  return out;
}

// Dead, left, or stopped and not to be waited for.
bool Agreement::is_gone(int32_t q) {
  if ((dead_ & bit(q)) != 0) return true;
  MemberState state = core_.state(q);
  int32_t rank = core_.world_rank(q);
  const Peer& peer = core_.world->peers[static_cast<size_t>(rank)];
  bool foreign = peer.pid != core_.pid(core_.rank);
  if (state == kLeft || state == kClosed || (foreign && process_ended(peer))) {
    dead_ |= bit(q);
    return true;
  }
  int64_t& since = stopped_since_[q];
  if (!foreign ||
      process_state(peer.pid, peer.start_time) != ProcessState::kStopped) {
    since = 0;
    return false;
  }
  if (since == 0) since = now_ns();
  // Its stop is why the group failed: that limit has passed.
  if (poison_cause(core_).rank() == rank) return true;
  return now_ns() - since >= core_.world->context->scaled(kStopLimitNs);
}

}  // namespace

Result<Shrunk> agree_to_shrink(GroupCore& core, Deadline deadline) {
  return Agreement(core, deadline).run();
}

std::string generation_name(const std::string& base, uint64_t generation) {
  return generation == 0 ? base : fmt::format("{}#{}", base, generation);
}

std::string survivors_text(const GroupCore& core) {
  uint64_t members = core.control.shrunk().members.load();
  std::vector<int32_t> ranks;
  for (int32_t q = 0; q < core.size; ++q) {
    if ((members >> q & 1) != 0) ranks.push_back(core.world_rank(q));
  }
  return fmt::format("rank(s) {} went on as \"{}\"", fmt::join(ranks, ", "),
                     generation_name(core.base, core.generation + 1));
}

}  // namespace aliquot::mem
