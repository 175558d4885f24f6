// A slower wire than this host has, for tests and demonstrations of overlap:
// after an operation the stream holds for as long as its bytes would have taken
// at `throttle_bytes_per_s`.  The delay costs no CPU time.
#pragma once

#include "base/clock.h"
#include "comm/group.h"
#include "device/cpu/op.h"

namespace aliquot::mem {

class HoldOp : public Op {
 public:
  explicit HoldOp(int64_t ns) : ns_(ns) {}
  void post() override { start(); }
  Step step(bool) override {
    start();
    return now_ns() >= until_ ? Step::kDone : Step::kWaiting;
  }
  int64_t wake_at() const override { return until_; }

 private:
  void start() {
    if (until_ == 0) until_ = now_ns() + ns_;
  }
  const int64_t ns_;
  int64_t until_ = 0;
};

// Bytes that one rank receives in a collective of `size` ranks.
inline int64_t received_bytes(const Coll& coll, int32_t rank, int32_t size) {
  int64_t own =
      coll.counts.empty() ? coll.count : coll.counts[static_cast<size_t>(rank)];
  int64_t all = own * size;
  if (!coll.counts.empty()) {
    all = 0;
    for (int64_t count : coll.counts) all += count;
  }
  int64_t element = dtype_size(coll.dtype);
  switch (coll.kind) {
    case CollKind::kAllGather: return (all - own) * element;
    case CollKind::kReduceScatter: return (size - 1) * own * element;
    case CollKind::kAllReduce:
      return 2 * (size - 1) * coll.count * element / size;
    case CollKind::kAllToAllV: {
      int64_t received = 0;
      for (int64_t count : coll.recv_counts) received += count;
      received -= coll.recv_counts[static_cast<size_t>(rank)];
      return received * element;
    }
    case CollKind::kGather:
      return rank == coll.root ? (all - own) * element : 0;
    case CollKind::kScatter: return rank == coll.root ? 0 : own * element;
    case CollKind::kReduce:
      return rank == coll.root ? (size - 1) * coll.count * element : 0;
    case CollKind::kAllToAll: return (size - 1) * coll.count * element;
    case CollKind::kBarrier: return 0;
    default: return coll.count * element;
  }
}

}  // namespace aliquot::mem
