// WrittenOnce: guards a record in memory that processes share, which the first
// who has something to say writes, and all read.
//
// Cost: one exchange to begin and one to end, one load to read.  Who reads
// while it is being written waits for the writer, which may have lost its
// processor in the middle: longer than any count of instructions, but not when
// it has ended. The first who waited in vain gives the record up for all.
#pragma once

#include <atomic>
#include <cstdint>

namespace aliquot {

class WrittenOnce {
 public:
  enum class State { kNot, kWhole, kUnfinished };

  // True for the first caller, who writes the record and calls end().
  bool begin();
  void end();

  bool begun() const { return word_.load() != 0; }
  // kUnfinished: the writer ended in the middle, or was stopped there for a
  // second.  Blocks: at most that long, once, while the record is being
  // written.
  State state();
  // The process that began and has not ended; else 0.
  int32_t writer() const;

  // 0 until somebody begins.
  const std::atomic<uint32_t>& word() const { return word_; }

 private:
  static constexpr uint32_t kEnded = 1;
  // With the process that writes.
  static constexpr uint32_t kWriting = uint32_t{1} << 31;
  static constexpr uint32_t kGivenUp = uint32_t{1} << 30;

  std::atomic<uint32_t> word_{0};
};

}  // namespace aliquot
