// The flight recorder: a ring of the last events of a rank, always on.  An
// event is one span on one lane.  Recording takes a lane's clock readings and
// one store into a preallocated ring: well under 100 ns.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"

namespace aliquot::trace {

enum class Lane : int32_t { kCompute, kGather, kReduce, kWait, kStep, kCount };
const char* lane_name(Lane lane);

// What a wait was for.
enum class Cause : int32_t {
  kNone,
  kLateLaunch,     // the gather was not issued ahead
  kLink,           // it was, and was still not there
  kSmallMessage,   // it was, and is so small that latency is all of it
  kBufferRecycle,  // a gradient slot was still being reduced
  kDrain,          // the step's last reductions
};
const char* cause_name(Cause cause);

struct Span {
  int64_t begin = 0, end = 0;  // CLOCK_MONOTONIC, ns; end 0: still open
  int64_t bytes = 0;
  Lane lane = Lane::kCompute;
  int32_t pass = 0;  // ALQ_PASS_*
  Cause cause = Cause::kNone;
  int32_t step = 0;
  int32_t name = -1;  // index of names()
  int32_t root = 0;   // 1: a unit that stays open over others
};

// One writer at a time per engine; readers copy.
class Recorder {
 public:
  explicit Recorder(size_t capacity = 16384)
      : own_(capacity), ring_(own_.data()), capacity_(capacity) {}
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Records there from now on, in memory that streams can write: capacity()
  // spans, zeroed.
  void use(Span* ring) {
    ring_ = ring;
    own_ = {};
    next_ = 0;
  }
  size_t capacity() const { return capacity_; }

  // Opens a span and returns its place: streams write `end` (and `begin`)
  // later.
  Span* add(const Span& span) {
    Span& slot = ring_[next_ % capacity_];
    slot = span;
    ++next_;
    return &slot;
  }

  int32_t name(const std::string& text);
  const std::vector<std::string>& names() const { return names_; }

  // Oldest first; spans that never ended are left out.
  std::vector<Span> spans() const;
  size_t recorded() const { return next_; }

 private:
  std::vector<Span> own_;
  Span* ring_;
  size_t capacity_;
  size_t next_ = 0;
  std::vector<std::string> names_;
};

// One rank's spans, as gathered for a merged trace.
struct RankTrace {
  int32_t rank = 0;
  int64_t clock_offset_ns = 0;  // to add to reach rank 0's clock
  std::vector<std::string> names;
  std::vector<Span> spans;
};

// Chrome/Perfetto JSON: pid is the rank, tid the lane, times in microseconds
// from the earliest span.
std::string perfetto_json(const std::vector<RankTrace>& ranks);

// A picture of one step: lanes per rank, waits shaded.  Step -1: the last one
// that all ranks have whole.
std::string timeline_svg(const std::vector<RankTrace>& ranks, int32_t step);

// Bytes for the exchange between ranks, and back; false on bad bytes, of which
// nothing is to be used.
std::string pack(const RankTrace& trace);
bool unpack(const std::string& bytes, RankTrace* trace);

}  // namespace aliquot::trace
