// The call log: what the host of each rank called, so that a rank without data
// can do its part of the same calls.
//
// Every rank writes its own collective calls, numbered from 0, into a ring in
// memory that all ranks of the host map.  Calls are collective, so call n is
// the same in every ring, and a rank that has made (or followed) n calls knows
// from any ring how it goes on, however far the others are ahead.  Nobody waits
// for anybody to write: as long as no rank follows, a call costs a few stores.
//
// A region.  A rank says that it ends here (by entering or leaving join) and
// from then on follows those that have not; when all have ended, at the same
// number, the region is over and every rank goes on by itself.  Regions are
// counted: all ranks take part in each.
//
// Waiting.  Who waits for another rank's call asks it for a message; a rank
// that is asked sends one as soon as it has what was asked for.  So waiting
// ends as every operation of a group does: with data, the peer's failure or the
// group's deadline.  The same serves a rank whose ring is full: it may not
// overwrite what a slower rank might still have to follow.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "comm/group.h"
#include "device/device.h"

namespace aliquot::engine {

enum class CallKind : int16_t {
  kMicrobatchBegin,  // detail: mode, | kLast
  kUnitBegin,        // id: unit; detail: pass, | kLent
  kUnitEnd,          // id: unit; detail: pass
  kReduce,           // id: bundle whose gradients are final
  kMicrobatchEnd,
  kStep,     // arguments: rates()
  kStepSet,  // begin: steps
  kTouch,
  kRead,   // id: parameter; detail: what; begin, count: elements
  kOther,  // one that cannot be followed; detail: OtherCall
};

enum class OtherCall : int16_t { kWrite, kHold, kPlan, kTrace, kClose };

struct Call {
  CallKind kind = CallKind::kOther;
  int16_t detail = 0;
  int32_t id = 0;
  int64_t begin = 0, count = 0;

  static constexpr int16_t kLast = 0x100, kLent = 0x100;
  bool operator==(const Call&) const = default;
};

class CallLog {
 public:
  // Null where there is nobody to follow, or no memory in common.  rates: how
  // many numbers a step's arguments are.  Collective.
  static Result<std::unique_ptr<CallLog>> create(std::shared_ptr<Group> group,
                                                 int64_t rates,
                                                 Deadline deadline);

  // The own next call, before anything of it is enqueued.
  Status record(const Call& call) {
    if (made_ - room_from_ >= kCapacity) ALQ_TRY(make_room());
    ring(group_->rank())[made_ % kCapacity] = call;
    return publish();
  }
  // Arguments of a step, written before the step is recorded.  Others read them
  // before they meet this rank in the step.
  double* rates(int32_t rank) const {
    return reinterpret_cast<double*>(part(rank) + sizeof(Line) * kLines);
  }

  // This rank makes no more calls in this region.
  Status end(bool leaves);
  // The next call of those that have not ended; waits for all of them.
  struct Next {
    int32_t author = -1;  // -1: all have ended here
    Call call;
    int32_t other = -1;  // called something else: `other_call`
    Call other_call;
    int32_t left = -1;  // has left here
  };
  Result<Next> next();
  // The call that next gave is taken over.
  Status follow() { return publish(); }
  void finish_region();

  // After an abandoned step: as new, once all ranks have met.
  void reset();
  void use(std::shared_ptr<Group> group) { group_ = std::move(group); }

 private:
  struct alignas(64) Line {
    std::atomic<uint64_t> value, other;
  };
  // Of a rank, written by it: calls made or followed; where it ended, by region
  // mod 2; what it asks.  Written by others: how many ask it.
  enum { kMade, kEnded, kAsks, kAsked, kLines };
  static constexpr uint64_t kCapacity = 4096;
  enum class Seen { kNothing, kCall, kEnd, kLeft };

  CallLog(std::shared_ptr<Group> group, std::unique_ptr<Memory> memory,
          int64_t stride)
      : group_(std::move(group)), memory_(std::move(memory)), stride_(stride) {}

  std::byte* part(int32_t rank) const {
    return memory_->data() + rank * stride_;
  }
  Line& line(int32_t rank, int which) const {
    return reinterpret_cast<Line*>(part(rank))[which];
  }
  Call* ring(int32_t rank) const {
    return reinterpret_cast<Call*>(part(rank) + stride_) - kCapacity;
  }
  std::atomic<uint64_t>& ended(int32_t rank) const {
    Line& words = line(rank, kEnded);
    return region_ % 2 == 0 ? words.value : words.other;
  }
  Status publish() {
    line(group_->rank(), kMade).value.store(++made_);
    if (line(group_->rank(), kAsked).value.load() == 0) return {};
    return answer();
  }
  Seen look(int32_t rank, uint64_t number) const;
  template <typename Ready>
  Status await(int32_t rank, uint64_t ask, Ready ready);
  Status answer();
  Status make_room();

  std::shared_ptr<Group> group_;
  const std::unique_ptr<Memory> memory_;
  const int64_t stride_;
  uint64_t made_ = 0;
  uint64_t room_from_ = 0;  // no rank has made fewer calls
  uint64_t region_ = 1;
  bool ended_here_ = false;
};

}  // namespace aliquot::engine
