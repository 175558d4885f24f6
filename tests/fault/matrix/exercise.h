// One operation of the matrix, called again and again with data that differs
// between ranks, elements and calls, and compared with what must come out.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "support/ranks.h"

namespace aliquot::test {

// The rows' operations: the collectives, and messages around a ring.
enum class Op : int32_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kAllToAllV,
  kBroadcast,
  kGather,
  kScatter,
  kReduce,
  kBarrier,
  kMessages,
};
constexpr int kOps = 11;
const char* op_name(Op op);
CollKind kind_of(Op op);

// Where the data lies and how much of it: within the slots, in memory that
// peers map, in private memory (staged or read by the kernel).
enum class Shape : int32_t { kInline, kShared, kPrivate, kLarge };
const char* shape_name(Shape shape);

// How a rank's call differs from the others'.
enum class Odd : int32_t { kNone, kOp, kCount, kDtype, kRoot };

class Exercise {
 public:
  Exercise(Rank& rank, Op op, Shape shape);

  // Calls it once on the group, and where that succeeds checks the result.
  Status call(Group& group, Odd odd = Odd::kNone);
  // The next call's number; the same on all ranks.
  void start_at(int64_t call) { call_ = call; }

 private:
  float value(int32_t world_rank, int64_t i) const;
  int64_t pair_count(int32_t from, int32_t to) const;
  Coll describe(const Group& group, Odd odd);
  Status messages(Group& group, const Coll& coll, Odd odd);
  // "" or what is wrong.
  std::string wrong(const Group& group) const;
  float expected(const Group& group, int64_t i) const;
  int64_t results(const Group& group) const;

  Rank& rank_;
  const Op op_;
  const int64_t count_;
  const bool shared_;
  int64_t call_ = 0;
  int32_t root_ = 0;
  std::unique_ptr<Memory> memory_;
  std::vector<float> heap_;
  float *src_ = nullptr, *dst_ = nullptr;
  std::vector<int64_t> send_counts_, recv_counts_;
  std::shared_ptr<Stream> stream_;
};

}  // namespace aliquot::test
