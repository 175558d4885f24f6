// One rank of a contestant: a process that sleeps in a read until it is told
// what to run, so that others can be measured meanwhile.
//
// Commands, a line each, from the named pipe DIR/in-RANK; one answer line each
// to DIR/out-RANK:
//   check OP BYTES BUFFERS      "ok", or what was wrong, element by element
//   run OP BYTES BUFFERS CALLS  "BEGIN END", ns of the clock that all processes
//                               of a host share; a barrier before and after
//   end                         an orderly end
// BYTES is the larger buffer of a rank.  All-reduce is in place, the others are
// not.
#pragma once

#include <cstdint>
#include <string>

namespace aliquot::peers {

enum class Op { kAllReduce, kReduceScatter, kAllGather, kGather, kScatter };

struct Buffers {
  float* src;
  float* dst;
  int64_t elements;  // of the larger buffer
  int64_t part;      // elements / size
};

class Contestant {
 public:
  virtual ~Contestant() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Zeroed memory of this kind, the same each time; null: no such kind.
  virtual float* memory(const std::string& kind, int64_t bytes) = 0;
  // Ends the process on failure.
  virtual void run(Op op, const Buffers& buffers) = 0;
  virtual void barrier() = 0;
};

// Until told to end.  0, or 1 when the pipes are gone.
int serve(Contestant& contestant, const std::string& dir);

}  // namespace aliquot::peers
