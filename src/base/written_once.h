// WrittenOnce: guards a record in memory that processes share, which the first
// who has something to say writes, and all read.
//
// Cost: one exchange to write, one load to read.  Who reads while it is being
// written waits for the writer, which may have lost its processor in the
// middle: longer than any count of instructions, but not when it has ended.
#pragma once

#include <atomic>
#include <cstdint>

namespace aliquot {

class WrittenOnce {
 public:
  enum class State { kNot, kWhole, kUnfinished };

  // True for the first caller, who writes the record and calls end().
  bool begin();
  void end() { word_.store(kEnded); }

  bool begun() const { return word_.load() != 0; }
  // kUnfinished: the writer ended in the middle, or was stopped there for a
  // second.  Blocks: at most that long, while the record is being written.
  State state() const;
  // The process that writes, while it does; else 0.
  int32_t writer() const;

  // 0 until somebody begins.
  const std::atomic<uint32_t>& word() const { return word_; }

 private:
  static constexpr uint32_t kEnded = 1, kWriting = uint32_t{1} << 31;

  std::atomic<uint32_t> word_{0};  // kWriting: with the process that writes
};

}  // namespace aliquot
