// CollOp: one collective as a resumable state machine, run inline or queued.
//
//   turn     until all earlier collectives of the group are done here
//   arrive   announced; until all peers have announced, then calls compared
//   run      the algorithm (one file each)
//   drain    until peers have read what of ours they need
//   dying    failed; until no thread of this process reads our memory, and no
//            rank writes into it
#pragma once

#include <memory>
#include <vector>

#include "comm/mem/core.h"
#include "device/cpu/op.h"

namespace aliquot::mem {

// The outcome of a queued operation.
struct WorkState {
  std::atomic<bool> done{false};
  Status status;  // valid once done
};

class CollOp;

// An algorithm moves data by as much as one step may and says kProgress,
// kWaiting, kDone or, after op.fail(), kFailed.
struct Algorithm {
  Step (*inlined)(CollOp&);  // all data is in the slots
  Step (*direct)(CollOp&);   // from peers' memory
  Step (*staged)(CollOp&);   // through staging windows
};
const Algorithm& algorithm(CollKind kind);

class CollOp : public Op {
 public:
  // keep: the core's owner for queued operations, null inline.
  CollOp(GroupCore& core, std::shared_ptr<GroupCore> keep, const Coll& coll,
         int32_t flags, uint64_t number, std::shared_ptr<WorkState> work);
  ~CollOp() override;
  CollOp(const CollOp&) = delete;
  CollOp& operator=(const CollOp&) = delete;

  void post() override;
  Step step(bool slow) override;
  Status status() const override { return status_; }

  void set_deadline(Deadline deadline) { deadline_ = deadline.at(); }

  // ---- for algorithms
  GroupCore& core;
  Coll coll;
  const uint64_t number;
  const int32_t me, size;
  const int64_t in_size, out_size;  // bytes of an element of src, dst
  GroupStats counts;

  // Where the algorithm is; all zero at first.
  int32_t phase = 0, peer = 0;
  int64_t pos = 0;
  // Result and windows, which peers read next, are written past the caches.
  bool streams_dst = false, streams_stage = false;
  uint64_t filled = 0, taken = 0;    // staging windows
  const std::byte* base[kMaxRanks];  // peers' memory; null: read_process
  // All ranks map all memory, and results are written into every rank's.
  bool pushes = false;
  std::byte* result[kMaxRanks];  // peers' dst, where results are pushed

  // Part q of the whole, in elements: a rank's contribution, destination or
  // chunk.
  int64_t part_begin(int32_t q) const;
  int64_t part_count(int32_t q) const;
  int64_t part_total() const { return part_begin(size); }

  const std::byte* src() const {
    return static_cast<const std::byte*>(coll.src);
  }
  std::byte* dst() const { return static_cast<std::byte*>(coll.dst); }
  bool in_place() const { return coll.src == coll.dst; }
  const Slot& slot(int32_t q) const { return core.control.slot(q, number); }

  // True when `which` of all peers has come to `value`.
  bool reached(Line Member::*which, uint64_t value);
  bool peer_reached(int32_t q, Line Member::*which, uint64_t value);
  // Stores an own word and rings.
  void publish(Line Member::*which, uint64_t value);

  // Fills base from the peers' src or dst locations.
  Status resolve(Location Slot::*which);
  // Fills result from the peers' dst locations.
  Status resolve_results();
  // Reads bytes of peer q where base[q] is null.
  Status fetch(int32_t q, Location Slot::*which, int64_t offset, void* into,
               int64_t bytes);

  Step fail(Status status);

 private:
  enum class State { kTurn, kArrive, kRun, kDrain, kDying, kDone };

  void describe();
  void announce();
  Status compare();
  Step choose();
  void choose_ways();
  Moved private_kind() const;
  Step run();
  Step waiting(bool slow);
  Step finish();
  // What is done once no peer's memory is needed any more: in time that peers
  // need for theirs.
  void settle();
  Step dying();
  // Checks that cost: deadline, ranks that left.
  Status slow_checks();
  // Whether others may be in memory of this operation; a failed one waits for
  // them: they stop at the next block.
  bool memory_in_use() const;
  void withdraw();
  static constexpr int64_t kMemoryNs = 1'000'000'000;
  bool awaits(int32_t q) const;
  std::string what() const;
  void announce_memory();
  void ask_huge_pages(const void* data, int64_t bytes);
  // What rank q announced.
  Location location(int32_t q, Location Slot::*which) const;
  SegmentRef segment(int32_t q, Location Slot::*which) const;
  Result<std::byte*> find(int32_t q, Location Slot::*which);
  Result<std::byte*> hold(int32_t q, const Location& at, const SegmentRef& ref);
  // Bytes of this rank's src that peers may read.
  int64_t readable_bytes() const;
  void announce_pairs();

  const std::shared_ptr<GroupCore> keep_;
  const std::shared_ptr<WorkState> work_;
  std::shared_ptr<Segment> src_segment_, dst_segment_;
  std::vector<std::shared_ptr<Segment>> held_;  // of this process
  State state_ = State::kTurn;
  Step (*run_)(CollOp&) = nullptr;
  bool inlined_ = false, drain_ = false, mapped_ = false, reading_ = false;
  bool settled_ = false;
  bool said_where_ = false, exposes_dst_ = false;
  int32_t flags_;
  int32_t cursor_ = 0;
  int64_t deadline_ = 0;
  int64_t started_ = 0;
  int64_t moving_ = 0;  // since when, 0: not timed
  Way way_ = kAsMeasured;
  Moved moved_ = Moved::kResults;
  const uint64_t recorded_;          // by the flight recorder
  int64_t chunk_ = 0;                // all-reduce: elements of a rank's chunk
  Line Member::*awaited_ = nullptr;  // null: the slots
  uint64_t awaited_value_ = 0;
  Call call_;
  Status status_;
  int64_t own_counts_[kMaxRanks], own_recv_counts_[kMaxRanks];
};

}  // namespace aliquot::mem
