// Group: a set of ranks that communicate.  One folder per backend implements
// it; everything above sees only this.
//
// Order: operations of one group take effect in the order they were issued, on
// whatever stream each was put.  A failed group is poisoned for good.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/status.h"
#include "comm/consequences.h"
#include "device/device.h"
#include "kernels/ops.h"

namespace aliquot {

enum class CollKind : int32_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kAllToAllV,
  kGather,
  kScatter,
  kReduce,
  kBarrier,
  kSend,
  kRecv,
};

const char* coll_name(CollKind kind);

inline bool is_reduction(CollKind kind) {
  return kind == CollKind::kAllReduce || kind == CollKind::kReduceScatter ||
         kind == CollKind::kReduce;
}
// Has a root.
inline bool is_rooted(CollKind kind) {
  return kind == CollKind::kBroadcast || kind == CollKind::kGather ||
         kind == CollKind::kScatter || kind == CollKind::kReduce;
}
// Between two ranks: `root` is the other one.
inline bool is_pair(CollKind kind) {
  return kind == CollKind::kSend || kind == CollKind::kRecv;
}

using kernels::BadSource;

// What a group's operations can do beside moving and summing; the engine does
// the rest by kernels of its own.
struct Abilities {
  bool common_memory = false;  // allocate_common works
  bool finds_bad = false;      // Coll::bad is honoured
  bool counts_norm = false;    // Coll::norm is honoured
};

// Elements of an all-reduce that a rank sums for all: chunks begin on cache
// lines.
inline int64_t reduce_chunk(int64_t count, int32_t ranks) {
  return ((count + ranks - 1) / ranks + 63) / 64 * 64;
}

// One collective call.  counts empty: `count` for every rank; else one entry
// per rank (gathers and scatters), valid for the call.
struct Coll {
  CollKind kind = CollKind::kBarrier;
  const void* src = nullptr;
  void* dst = nullptr;
  int64_t count = 0;
  std::span<const int64_t> counts = {};
  // All-to-all-v: `counts` go to the ranks, these come from them.
  std::span<const int64_t> recv_counts = {};
  Dtype dtype = ALQ_U8;
  // Reductions: dtype of dst; 0 is `dtype`.  Half types are summed in f32 (by
  // NCCL in their own, unless dst is f32 or `accumulate` or `factor` is set);
  // an f32 dst then receives the sum unrounded.
  Dtype out_dtype = 0;
  alq_reduce_op op = ALQ_SUM;
  // Reductions with SUM: the sum of factor * src, each rank with its own.
  std::optional<double> factor = {};
  // Reduce-scatter: dst += the sum instead of dst = the sum.
  bool accumulate = false;
  // Reductions: if not null, contributions that are not finite are looked for
  // where this rank sums, at no cost while there are none, and noted here; it
  // lives until the operation is done.
  BadSource* bad = nullptr;
  // All-reduce and reduce-scatter of floats: if not null, the squares of the
  // elements that this rank sums (reduce_chunk) are added here on the way; it
  // lives until the operation is done.
  kernels::NormBins* norm = nullptr;
  int64_t base = 0;  // number of src's first element in `bad` and `norm`
  // The result is not read soon: it need not pass through the caches.
  bool cold = false;
  int32_t root = 0;  // or the peer of send and recv, as rank in the group
  // The caller promises not to change src before it next synchronises with all
  // members, so completion need not wait for peers to have read it.
  bool source_stable = false;
  // Appears in errors and traces (a unit's name); valid until the work is done.
  const char* label = "";
};

// One issued operation.  Waiting helps it along.
class Work {
 public:
  virtual ~Work() = default;
  virtual bool done() const = 0;
  virtual Status wait(Deadline deadline) = 0;
};

struct GroupStats {
  int64_t ops = 0;
  int64_t bytes_read = 0, bytes_written = 0, peer_bytes_read = 0;
  int64_t syscalls = 0, sleeps = 0;
};

// How memory that is not from alq_buffer_alloc reaches other ranks: "in place"
// (ranks share the process), "read" (once, by a system call; staged up to these
// numbers of bytes that one rank has for another) or "staged".
struct PrivateMemory {
  const char* access = "in place";
  int64_t stage_sums = 0, stage_copies = 0;
  bool streams = false;  // staging writes past the caches
};

class Group {
 public:
  virtual ~Group() = default;

  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;
  virtual std::span<const int32_t> ranks() const = 0;  // world ranks
  virtual const std::string& name() const = 0;

  // stream null: returns when done.  Else enqueues; *work (if not null) is a
  // handle on it.
  virtual Status issue(const Coll& coll, Stream* stream,
                       std::shared_ptr<Work>* work) = 0;

  // Collective: color < 0 gives a null pointer.
  virtual Result<std::shared_ptr<Group>> split(int32_t color, int32_t key,
                                               std::string name,
                                               Deadline deadline) = 0;

  // After a failure: the members that are alive and call this get a group of
  // the next generation without the others.  All who get it have the same
  // members.
  virtual Result<std::shared_ptr<Group>> shrink(Deadline deadline) = 0;

  virtual Abilities abilities() const = 0;
  // Do all members share one host, so that allocate_common works?
  bool common_memory() const { return abilities().common_memory; }

  // Memory of `bytes` bytes that all members map; member r's contents are
  // seen by all.  Collective.  UNSUPPORTED when members share no host.
  virtual Result<std::unique_ptr<Memory>> allocate_common(
      int64_t bytes, std::string label, Deadline deadline) = 0;

  virtual int64_t timeout_ns() const = 0;
  virtual void set_timeout_ns(int64_t ns) = 0;
  virtual Status status() const = 0;
  virtual GroupStats stats() const = 0;
  virtual PrivateMemory private_memory() const = 0;
  virtual void abort(const Status& reason) = 0;
  // From now on an operation of `other` (of the same backend) that fails on
  // this rank, or is refused because `other` has failed, fails this group too,
  // with the same cause: before what follows it on its stream begins here, so
  // that no peer is given what comes of it.  Where streams run by themselves,
  // soon after.  `other` keeps this group, and must not follow it.
  virtual void fail_with(Group& other) = 0;
  // When this group has failed the word is raised: before streams go on after
  // an operation that did not do its work.
  virtual void on_failure(std::shared_ptr<FailWord> word) = 0;
  virtual Status close(Deadline deadline) = 0;
};

}  // namespace aliquot
