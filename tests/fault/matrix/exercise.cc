#include "fault/matrix/exercise.h"

#include <algorithm>

namespace aliquot::test {
namespace {

int64_t count_of(Shape shape) {
  switch (shape) {
    case Shape::kInline: return 64;
    case Shape::kLarge: return 400'000;
    default: return 30'000;
  }
}

}  // namespace

const char* op_name(Op op) {
  return op == Op::kMessages ? "send/recv" : coll_name(kind_of(op));
}

CollKind kind_of(Op op) {
  switch (op) {
    case Op::kAllReduce: return CollKind::kAllReduce;
    case Op::kReduceScatter: return CollKind::kReduceScatter;
    case Op::kAllGather: return CollKind::kAllGather;
    case Op::kAllToAll: return CollKind::kAllToAll;
    case Op::kAllToAllV: return CollKind::kAllToAllV;
    case Op::kBroadcast: return CollKind::kBroadcast;
    case Op::kGather: return CollKind::kGather;
    case Op::kScatter: return CollKind::kScatter;
    case Op::kReduce: return CollKind::kReduce;
    case Op::kMessages: return CollKind::kRecv;
    default: return CollKind::kBarrier;
  }
}

const char* shape_name(Shape shape) {
  constexpr const char* kNames[] = {"inline", "shared", "private", "large"};
  return kNames[static_cast<int>(shape)];
}

Exercise::Exercise(Rank& rank, Op op, Shape shape)
    : rank_(rank),
      op_(op),
      count_(op == Op::kBarrier ? 0 : count_of(shape)),
      shared_(shape == Shape::kShared) {
  // Room for the operation that an odd rank calls instead.
  int64_t most = std::max<int64_t>(count_, 64);
  auto elements = static_cast<size_t>(most * rank.size + 16);
  if (shared_) {
    auto memory = rank.device->allocate(
        static_cast<int64_t>(2 * elements * sizeof(float)), "exercise");
    rank.check_ok(memory.status(), "memory");
    memory_ = std::move(*memory);
    src_ = reinterpret_cast<float*>(memory_->data());
  } else {
    heap_.resize(2 * elements);
    src_ = heap_.data();
  }
  dst_ = src_ + elements;
  if (op == Op::kMessages) stream_ = *rank.device->create_stream("messages");
}

// Small integers: every sum is exact.
float Exercise::value(int32_t world_rank, int64_t i) const {
  return static_cast<float>((world_rank * 29 + i * 3 + call_ * 7) % 61 + 1);
}

int64_t Exercise::pair_count(int32_t from, int32_t to) const {
  return count_ - (from + 2 * to) % 3;
}

Coll Exercise::describe(const Group& group, Odd odd) {
  Coll coll;
  coll.kind = kind_of(op_);
  coll.dtype = odd == Odd::kDtype ? ALQ_I32 : ALQ_F32;
  coll.count = odd == Odd::kCount ? count_ - 1 : count_;
  coll.src = src_;
  coll.dst = op_ == Op::kBroadcast ? src_ : dst_;
  root_ = static_cast<int32_t>(call_ % group.size());
  coll.root = odd == Odd::kRoot ? (root_ + 1) % group.size() : root_;
  coll.label = "unit 7";
  if (op_ == Op::kAllToAllV) {
    send_counts_.clear(), recv_counts_.clear();
    for (int32_t q = 0; q < group.size(); ++q) {
      send_counts_.push_back(pair_count(group.rank(), q));
      recv_counts_.push_back(pair_count(q, group.rank()));
    }
    // One element fewer for everyone.
    for (int64_t& n : send_counts_) n -= odd == Odd::kCount ? 1 : 0;
    coll.counts = send_counts_, coll.recv_counts = recv_counts_;
  }
  if (odd == Odd::kOp) {
    bool reduces = op_ == Op::kAllReduce;
    coll = Coll{};
    coll.kind = reduces ? CollKind::kAllGather : CollKind::kAllReduce;
    coll.dtype = ALQ_F32;
    coll.count = 64;
    coll.src = src_, coll.dst = dst_;
  }
  return coll;
}

// To the next rank from the one before, at once.
Status Exercise::messages(Group& group, const Coll& coll, Odd odd) {
  if (odd == Odd::kOp) return group.issue(coll, nullptr, nullptr);
  if (group.size() == 1) return {};  // nobody to talk to
  Coll send = coll, recv = coll;
  send.kind = CollKind::kSend;
  send.root = (group.rank() + 1) % group.size();
  recv.root = (group.rank() + group.size() - 1) % group.size();
  std::shared_ptr<Work> work;
  ALQ_TRY(group.issue(send, stream_.get(), &work));
  Status received = group.issue(recv, nullptr, nullptr);
  Status sent = work->wait(Deadline::after(20'000'000'000));
  return received.ok() ? sent : received;
}

Status Exercise::call(Group& group, Odd odd) {
  Coll coll = describe(group, odd);
  for (int64_t i = 0; i < count_ * rank_.size; ++i) {
    src_[i] = value(rank_.rank, i);
    dst_[i] = -1;
  }
  // Never goes down, and reaches the members' number before any returns.
  int64_t entered = rank_.shared(40).fetch_add(1) + 1;
  Status status = op_ == Op::kMessages ? messages(group, coll, odd)
                                       : group.issue(coll, nullptr, nullptr);
  if (status.ok() && odd == Odd::kNone) {
    std::string what = wrong(group);
    rank_.check(what.empty(),
                fmt::format("SILENTLY WRONG: call {}: {}", call_, what));
    if (op_ == Op::kBarrier && call_ < 1000) {  // not after a shrink
      rank_.check(rank_.shared(40).load() >= group.size() * (call_ + 1),
                  fmt::format("a barrier let rank {} through early ({})",
                              rank_.rank, entered));
    }
  }
  ++call_;
  return status;
}

int64_t Exercise::results(const Group& group) const {
  bool root = group.rank() == root_;
  if (op_ == Op::kMessages && group.size() == 1) return 0;
  switch (op_) {
    case Op::kBarrier: return 0;
    case Op::kGather: return root ? count_ * group.size() : 0;
    case Op::kReduce: return root ? count_ : 0;
    case Op::kAllGather:
    case Op::kAllToAll: return count_ * group.size();
    case Op::kAllToAllV: {
      int64_t sum = 0;
      for (int64_t n : recv_counts_) sum += n;
      return sum;
    }
    default: return count_;
  }
}

// Element i of the result.
float Exercise::expected(const Group& group, int64_t i) const {
  auto ranks = group.ranks();
  auto member = [&](int64_t q) { return ranks[static_cast<size_t>(q)]; };
  int64_t offset = group.rank() * count_;
  switch (op_) {
    case Op::kAllReduce:
    case Op::kReduce: offset = 0; [[fallthrough]];
    case Op::kReduceScatter: {
      float sum = 0;
      for (int32_t r : ranks) sum += value(r, offset + i);
      return sum;
    }
    case Op::kAllGather:
    case Op::kGather: return value(member(i / count_), i % count_);
    case Op::kAllToAll: return value(member(i / count_), offset + i % count_);
    case Op::kAllToAllV: {
      int32_t q = 0;
      for (; i >= recv_counts_[static_cast<size_t>(q)]; ++q) {
        i -= recv_counts_[static_cast<size_t>(q)];
      }
      for (int32_t r = 0; r < group.rank(); ++r) i += pair_count(q, r);
      return value(member(q), i);
    }
    case Op::kScatter: return value(member(root_), offset + i);
    case Op::kBroadcast: return value(member(root_), i);
    default: {
      int32_t before = (group.rank() + group.size() - 1) % group.size();
      return value(member(before), i);
    }
  }
}

std::string Exercise::wrong(const Group& group) const {
  const float* got = op_ == Op::kBroadcast ? src_ : dst_;
  for (int64_t i = 0; i < results(group); ++i) {
    float want = expected(group, i);
    if (got[i] != want) {
      return fmt::format("{} element {} is {}, not {}", op_name(op_), i, got[i],
                         want);
    }
  }
  return "";
}

}  // namespace aliquot::test
