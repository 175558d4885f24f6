// Board: what the ranks of an NCCL group tell each other beside NCCL, in memory
// that all of them map: the first failure, who has left, and fingerprints of
// the calls made.
//
// NCCL compares nothing: ranks that make different calls hang or get wrong
// numbers.  So each rank writes its calls into a ring, each with a hash of all
// calls up to it.  Whoever waits compares later, off the issuing path: equal
// hashes at one call mean equal calls up to it; else the rings are searched for
// the first that differs.  Cost of issuing: one hash and two cache lines.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/written_once.h"
#include "comm/call.h"
#include "comm/group.h"

namespace aliquot::nccl {

// One call as the others see it.
struct Print {
  uint64_t number = 0;
  uint64_t rolling = 0;  // hash of this call and all before it
  Call call = {};
  char label[32] = {};
};

// Names the rank at fault.
struct Mismatch {
  uint64_t number = 0;
  int32_t rank = -1;  // in the group; disagrees with rank 0 or with this one
  std::string text;
};

class Board {
 public:
  static constexpr int32_t kRing = 256;

  // Collective over the control group.
  static Result<std::unique_ptr<Board>> create(Group& control,
                                               const std::string& name,
                                               Deadline deadline);

  // ---- the first failure
  // Writes the cause unless there is one.  True if this was it.
  bool poison(const Status& cause);
  bool poisoned() const;
  Status cause() const;  // OK: none

  // ---- who has left
  void leave();
  bool left(int32_t rank) const;

  // ---- calls
  // Takes the next number.
  uint64_t publish(Call call, std::span<const int64_t> counts,
                   const char* label);
  uint64_t published(int32_t rank) const;
  // Compares what is new with all ranks.  One thread at a time, any thread.
  std::optional<Mismatch> compare();
  // The call of this rank with the number, if the ring still has it.
  std::optional<Print> own(uint64_t number) const {
    return read(rank_, number);
  }

 private:
  struct Entry {
    static constexpr size_t kWords = sizeof(Print) / 8;
    std::atomic<uint64_t> number;  // 0 while being written
    std::atomic<uint64_t> words[kWords];
  };
  struct alignas(64) Member {
    std::atomic<uint64_t> published;
    std::atomic<uint32_t> left;
    alignas(64) Entry ring[kRing];
  };
  struct alignas(64) Record {
    WrittenOnce once;
    int32_t code, culprit, domain, native;
    char text[1000];
  };

  Board(Group& control, const std::string& name,
        std::unique_ptr<Memory> memory);
  Record& record() const { return *reinterpret_cast<Record*>(memory_->data()); }
  Member& member(int32_t rank) const;
  std::optional<Print> read(int32_t rank, uint64_t number) const;
  Mismatch first_difference(int32_t rank, uint64_t from, uint64_t to) const;
  std::string print_text(const Print& print) const;

  const std::unique_ptr<Memory> memory_;
  const std::string name_;
  const int32_t rank_;
  const std::vector<int32_t> ranks_;
  uint64_t issued_ = 0, rolling_ = 0;
  std::vector<uint64_t> compared_;  // by rank
};

}  // namespace aliquot::nccl
