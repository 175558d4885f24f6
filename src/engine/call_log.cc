#include "engine/call_log.h"

#include <algorithm>

namespace aliquot::engine {
namespace {

// A place where a rank ended: region, whether it left, number of calls.
constexpr int kRegionShift = 48;
constexpr uint64_t kLeaves = uint64_t{1} << 47;
constexpr uint64_t kNumber = kLeaves - 1;
// What is asked: of whom (+ 1), whether a call only or also an end, number.
constexpr uint64_t kCallOnly = uint64_t{1} << 47;

uint64_t ask_of(int32_t rank, uint64_t number) {
  return (static_cast<uint64_t>(rank) + 1) << kRegionShift | number;
}

int64_t padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

Status message(Group& group, CollKind kind, int32_t peer) {
  int64_t nothing = 0;
  Coll coll;
  coll.kind = kind;
  if (kind == CollKind::kSend) {
    coll.src = &nothing;
  } else {
    coll.dst = &nothing;
  }
  coll.count = 1;
  coll.dtype = ALQ_I64;
  coll.root = peer;
  coll.label = "join";
  return group.issue(coll, nullptr, nullptr);
}

}  // namespace

Result<std::unique_ptr<CallLog>> CallLog::create(std::shared_ptr<Group> group,
                                                 int64_t rates,
                                                 Deadline deadline) {
  if (group->size() == 1 || !group->common_memory()) {
    return std::unique_ptr<CallLog>();
  }
  int64_t stride = static_cast<int64_t>(sizeof(Line)) * kLines +
                   padded(rates * static_cast<int64_t>(sizeof(double))) +
                   padded(static_cast<int64_t>(kCapacity * sizeof(Call)));
  ALQ_ASSIGN(
      std::unique_ptr<Memory> memory,
      group->allocate_common(stride * group->size(), "call log", deadline));
  return std::unique_ptr<CallLog>(
      new CallLog(std::move(group), std::move(memory), stride));
}

// The count is read first: a rank that ended goes on counting what it follows.
CallLog::Seen CallLog::look(int32_t rank, uint64_t number) const {
  uint64_t made = line(rank, kMade).value.load();
  uint64_t end = ended(rank).load();
  bool ends = end >> kRegionShift == (region_ & 0xffff) && end != 0;
  if (ends && (end & kNumber) <= number) {
    return (end & kLeaves) != 0 ? Seen::kLeft : Seen::kEnd;
  }
  return made > number ? Seen::kCall : Seen::kNothing;
}

// All accesses are sequentially consistent: either the other rank sees the
// question, or the second look here sees what was asked for.
template <typename Ready>
Status CallLog::await(int32_t rank, uint64_t ask, Ready ready) {
  std::atomic<uint64_t>& asks = line(group_->rank(), kAsks).value;
  std::atomic<uint64_t>& asked = line(rank, kAsked).value;
  while (!ready()) {
    asked.fetch_add(1);
    asks.store(ask);
    uint64_t mine = ask;
    if (ready() && asks.compare_exchange_strong(mine, 0)) {
      asked.fetch_sub(1);
      return {};
    }
    // Not taken back: a message comes.
    ALQ_TRY(message(*group_, CollKind::kRecv, rank));
  }
  return {};
}

Status CallLog::answer() {
  int32_t own = group_->rank();
  for (int32_t r = 0; r < group_->size(); ++r) {
    std::atomic<uint64_t>& asks = line(r, kAsks).value;
    uint64_t ask = asks.load();
    if (ask >> kRegionShift != ask_of(own, 0) >> kRegionShift) continue;
    bool has =
        made_ > (ask & kNumber) || (ended_here_ && (ask & kCallOnly) == 0);
    if (!has || !asks.compare_exchange_strong(ask, 0)) continue;
    line(own, kAsked).value.fetch_sub(1);
    ALQ_TRY(message(*group_, CollKind::kSend, r));
  }
  return {};
}

// Waits for the slowest rank until a quarter of the ring is free.
Status CallLog::make_room() {
  for (int32_t r = 0; r < group_->size(); ++r) {
    if (r == group_->rank()) continue;
    std::atomic<uint64_t>& made = line(r, kMade).value;
    if (made_ - made.load() < kCapacity) continue;
    uint64_t number = made_ - kCapacity + kCapacity / 4;
    ALQ_TRY(await(r, ask_of(r, number) | kCallOnly,
                  [&] { return made.load() > number; }));
  }
  room_from_ = made_;
  for (int32_t r = 0; r < group_->size(); ++r) {
    room_from_ = std::min(room_from_, line(r, kMade).value.load());
  }
  return {};
}

Status CallLog::end(bool leaves) {
  ended_here_ = true;
  ended(group_->rank())
      .store((region_ & 0xffff) << kRegionShift | (leaves ? kLeaves : 0) |
             made_);
  if (line(group_->rank(), kAsked).value.load() == 0) return {};
  return answer();
}

Result<CallLog::Next> CallLog::next() {
  Next next;
  for (int32_t r = 0; r < group_->size(); ++r) {
    if (r != group_->rank()) {
      ALQ_TRY(await(r, ask_of(r, made_),
                    [&] { return look(r, made_) != Seen::kNothing; }));
    }
    Seen seen = look(r, made_);
    if (seen == Seen::kLeft && next.left < 0) next.left = r;
    if (seen != Seen::kCall) continue;
    const Call& call = ring(r)[made_ % kCapacity];
    if (next.author < 0) {
      next.author = r;
      next.call = call;
    } else if (next.other < 0 && !(call == next.call)) {
      next.other = r;
      next.other_call = call;
    }
  }
  return next;
}

void CallLog::finish_region() {
  ++region_;
  ended_here_ = false;
}

void CallLog::reset() {
  for (int which = 0; which < kLines; ++which) {
    line(group_->rank(), which).value.store(0);
    line(group_->rank(), which).other.store(0);
  }
  made_ = room_from_ = 0;
  region_ = 1;
  ended_here_ = false;
}

}  // namespace aliquot::engine
