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
#include <string>

#include "base/status.h"

namespace aliquot {

class WrittenOnce {
 public:
  enum class State { kNot, kWhole, kUnfinished };

  // Who writes: a rank of 0 to 63, in a process.
  struct Writer {
    int32_t rank = -1, pid = 0;
  };
  // True for the first caller, who writes the record and calls end().
  bool begin(int32_t rank);
  void end();

  bool begun() const { return word_.load() != 0; }
  // kUnfinished: the writer ended in the middle, or was stopped there for a
  // second.  Blocks: at most that long, once, while the record is being
  // written.
  State state();
  // Who began and has not come to the end; rank -1 if nobody.
  Writer writer() const;
  // The error of kUnfinished, which names the writer.  what: as in "why group
  // "world" failed".
  Status unfinished(const std::string& what) const;

  // 0 until somebody begins.
  const std::atomic<uint32_t>& word() const { return word_; }

 private:
  static constexpr uint32_t kEnded = 1;
  // With the writer: processes have numbers of 22 bits, see proc(5), pid_max.
  static constexpr uint32_t kWriting = uint32_t{1} << 31;
  static constexpr uint32_t kGivenUp = uint32_t{1} << 30;
  static constexpr int kPidBits = 22;

  std::atomic<uint32_t> word_{0};
};

}  // namespace aliquot
