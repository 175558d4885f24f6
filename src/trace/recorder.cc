#include "trace/recorder.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace aliquot::trace {

const char* lane_name(Lane lane) {
  static constexpr const char* kNames[] = {"compute", "gather", "reduce",
                                           "wait", "step"};
  return kNames[static_cast<size_t>(lane)];
}

const char* cause_name(Cause cause) {
  static constexpr const char* kNames[] = {
      "",     "late launch", "link bound", "small message", "buffer recycle",
      "drain"};
  return kNames[static_cast<size_t>(cause)];
}

int32_t Recorder::name(const std::string& text) {
  names_.push_back(text);
  return static_cast<int32_t>(names_.size() - 1);
}

std::vector<Span> Recorder::spans() const {
  std::vector<Span> out;
  size_t count = next_ < capacity_ ? next_ : capacity_;
  for (size_t i = next_ - count; i < next_; ++i) {
    const Span& span = ring_[i % capacity_];
    if (span.end >= span.begin && span.end != 0) out.push_back(span);
  }
  return out;
}

namespace {

constexpr uint64_t kMagic = 0x31'43'52'54'51'4c'41;  // "ALQTRC1"

struct Head {
  uint64_t magic;
  int64_t clock_offset_ns;
  int32_t rank, reserved;
  uint64_t spans, names;
};

void put(std::string* out, const void* data, size_t bytes) {
  out->append(static_cast<const char*>(data), bytes);
}

}  // namespace

std::string pack(const RankTrace& trace) {
  Head head{kMagic, trace.clock_offset_ns, trace.rank,
            0,      trace.spans.size(),    trace.names.size()};
  std::string out;
  put(&out, &head, sizeof head);
  put(&out, trace.spans.data(), trace.spans.size() * sizeof(Span));
  for (const std::string& name : trace.names) {
    uint32_t size = static_cast<uint32_t>(name.size());
    put(&out, &size, sizeof size);
    put(&out, name.data(), size);
  }
  return out;
}

namespace {

// Sums and differences of such times fit; 2^56 ns are two years.
bool is_time(int64_t ns) { return ns > -(1ll << 56) && ns < 1ll << 56; }

bool is_whole(const Span& span) {
  auto lane = static_cast<int32_t>(span.lane);
  auto cause = static_cast<int32_t>(span.cause);
  return lane >= 0 && lane < static_cast<int32_t>(Lane::kCount) && cause >= 0 &&
         cause <= static_cast<int32_t>(Cause::kDrain) && is_time(span.begin) &&
         is_time(span.end) && span.step >= -1 &&
         span.step < std::numeric_limits<int32_t>::max();
}

}  // namespace

bool unpack(const std::string& bytes, RankTrace* trace) {
  Head head;
  if (bytes.size() < sizeof head) return false;
  std::memcpy(&head, bytes.data(), sizeof head);
  size_t at = sizeof head;
  if (head.magic != kMagic || !is_time(head.clock_offset_ns) ||
      head.spans > (bytes.size() - at) / sizeof(Span)) {
    return false;
  }
  trace->rank = head.rank;
  trace->clock_offset_ns = head.clock_offset_ns;
  trace->spans.resize(head.spans);
  if (head.spans > 0) {
    std::memcpy(static_cast<void*>(trace->spans.data()), bytes.data() + at,
                head.spans * sizeof(Span));
  }
  if (!std::all_of(trace->spans.begin(), trace->spans.end(), is_whole)) {
    return false;
  }
  at += head.spans * sizeof(Span);
  for (uint64_t i = 0; i < head.names; ++i) {
    uint32_t size = 0;
    if (bytes.size() - at < sizeof size) return false;
    std::memcpy(&size, bytes.data() + at, sizeof size);
    at += sizeof size;
    if (bytes.size() - at < size) return false;
    trace->names.emplace_back(bytes, at, size);
    at += size;
  }
  return at == bytes.size();
}

}  // namespace aliquot::trace
