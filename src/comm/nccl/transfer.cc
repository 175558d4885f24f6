// Gathers and sums of uneven parts are one broadcast or reduction per rank,
// grouped: NCCL runs a group as one launch.  All that only moves data moves
// bytes, so every dtype can.  Cost: one launch.
#include "comm/nccl/transfer.h"

namespace aliquot::nccl {
namespace {

class Calls {
 public:
  Calls(const Api& api, const Wire& wire, NcclOp op, CommHandle comm,
        RawStream stream)
      : api_(api), w_(wire), op_(op), comm_(comm), stream_(stream) {}

  Called run() {
    if (is_reduction(w_.kind) || w_.kind == CollKind::kBarrier) {
      type_ = w_.kind == CollKind::kBarrier ? kUint8 : *sum_type(w_.dtype);
      element_ = dtype_size(w_.dtype);
      unit_ = 1;
    } else {
      element_ = unit_ = dtype_size(w_.dtype);
    }
    switch (w_.kind) {
      case CollKind::kAllReduce: all_reduce(w_.count); break;
      case CollKind::kBarrier: all_reduce(1); break;
      case CollKind::kReduce: reduce(); break;
      case CollKind::kReduceScatter: reduce_scatter(); break;
      case CollKind::kBroadcast: broadcast(); break;
      case CollKind::kAllGather: all_gather(); break;
      case CollKind::kGather: gather(); break;
      case CollKind::kScatter: scatter(); break;
      case CollKind::kAllToAll:
      case CollKind::kAllToAllV: all_to_all(); break;
      case CollKind::kSend: send(w_.src, w_.count, w_.root); break;
      case CollKind::kRecv: recv(w_.dst, w_.count, w_.root); break;
    }
    return called_;
  }

 private:
  void note(const char* function, NcclResult result) {
    bool failed = result != kSuccess && result != kInProgress;
    bool failed_before =
        called_.result != kSuccess && called_.result != kInProgress;
    if (failed_before) return;
    if (failed || result == kInProgress || called_.function[0] == '\0') {
      called_ = {function, result};
    }
  }
  void begin() { note("ncclGroupStart", api_.group_start()); }
  void end() { note("ncclGroupEnd", api_.group_end()); }

  int64_t part(std::span<const int64_t> counts, int32_t q) const {
    return counts.empty() ? w_.count : counts[static_cast<size_t>(q)];
  }
  // Every rank's count, if they are equal.
  std::optional<int64_t> even() const {
    for (int64_t count : w_.counts) {
      if (count != w_.counts[0]) return std::nullopt;
    }
    return part(w_.counts, 0);
  }
  static size_t n(int64_t count) { return static_cast<size_t>(count); }
  size_t units(int64_t count) const { return n(count * unit_); }

  void send(const std::byte* from, int64_t count, int32_t peer) {
    if (count == 0) return;
    note("ncclSend",
         api_.send(from, units(count), kUint8, peer, comm_, stream_));
  }
  void recv(std::byte* to, int64_t count, int32_t peer) {
    if (count == 0) return;
    note("ncclRecv", api_.recv(to, units(count), kUint8, peer, comm_, stream_));
  }

  void all_reduce(int64_t count) {
    if (count == 0) return;
    note("ncclAllReduce",
         api_.all_reduce(w_.src, w_.dst, n(count), type_, op_, comm_, stream_));
  }

  void reduce() {
    if (w_.count == 0) return;
    note("ncclReduce", api_.reduce(w_.src, w_.dst, n(w_.count), type_, op_,
                                   w_.root, comm_, stream_));
  }

  void reduce_scatter() {
    if (const auto count = even()) {
      if (*count == 0) return;
      note("ncclReduceScatter",
           api_.reduce_scatter(w_.src, w_.dst, n(*count), type_, op_, comm_,
                               stream_));
      return;
    }
    begin();
    int64_t at = 0;
    for (int32_t q = 0; q < w_.size; ++q) {
      int64_t count = part(w_.counts, q);
      if (count > 0) {
        note(
            "ncclReduce",
            api_.reduce(w_.src + at * element_, q == w_.rank ? w_.dst : nullptr,
                        n(count), type_, op_, q, comm_, stream_));
      }
      at += count;
    }
    end();
  }

  void broadcast() {
    if (w_.count == 0) return;
    note("ncclBroadcast", api_.broadcast(w_.src, w_.dst, units(w_.count),
                                         kUint8, w_.root, comm_, stream_));
  }

  void all_gather() {
    if (const auto count = even()) {
      if (*count == 0) return;
      note("ncclAllGather", api_.all_gather(w_.src, w_.dst, units(*count),
                                            kUint8, comm_, stream_));
      return;
    }
    begin();
    int64_t at = 0;
    for (int32_t q = 0; q < w_.size; ++q) {
      int64_t count = part(w_.counts, q);
      std::byte* to = w_.dst + at * element_;
      if (count > 0) {
        note("ncclBroadcast",
             api_.broadcast(q == w_.rank ? w_.src : to, to, units(count),
                            kUint8, q, comm_, stream_));
      }
      at += count;
    }
    end();
  }

  void gather() {
    bool root = w_.rank == w_.root;
    begin();
    int64_t at = 0, mine = 0;
    for (int32_t q = 0; q < w_.size; ++q) {
      int64_t count = part(w_.counts, q);
      std::byte* to = root ? w_.dst + at * element_ : nullptr;
      bool in_place = q == w_.rank && to == w_.src;
      if (root && !in_place) recv(to, count, q);
      if (q == w_.rank && !in_place) mine = count;
      at += count;
    }
    send(w_.src, mine, w_.root);
    end();
  }

  void scatter() {
    bool root = w_.rank == w_.root;
    begin();
    int64_t at = 0, mine = 0;
    for (int32_t q = 0; q < w_.size; ++q) {
      int64_t count = part(w_.counts, q);
      const std::byte* from = root ? w_.src + at * element_ : nullptr;
      bool in_place = q == w_.rank && from == w_.dst;
      if (root && !in_place) send(from, count, q);
      if (q == w_.rank && !in_place) mine = count;
      at += count;
    }
    recv(w_.dst, mine, w_.root);
    end();
  }

  void all_to_all() {
    begin();
    int64_t from = 0, to = 0;
    for (int32_t q = 0; q < w_.size; ++q) {
      int64_t out = part(w_.counts, q), in = part(w_.recv_counts, q);
      send(w_.src + from * element_, out, q);
      recv(w_.dst + to * element_, in, q);
      from += out;
      to += in;
    }
    end();
  }

  const Api& api_;
  const Wire& w_;
  const NcclOp op_;
  const CommHandle comm_;
  const RawStream stream_;
  NcclType type_ = kUint8;
  int64_t element_ = 1, unit_ = 1;
  Called called_;
};

}  // namespace

std::optional<NcclType> sum_type(Dtype dtype) {
  switch (dtype) {
    case ALQ_F64: return kFloat64;
    case ALQ_F32: return kFloat32;
    case ALQ_F16: return kFloat16;
    case ALQ_BF16: return kBfloat16;
    case ALQ_I8: return kInt8;
    case ALQ_U8: return kUint8;
    case ALQ_I32: return kInt32;
    case ALQ_U32: return kUint32;
    case ALQ_I64: return kInt64;
    case ALQ_U64: return kUint64;
    default: return std::nullopt;
  }
}

Called transfer(const Api& api, const Wire& wire, NcclOp op, CommHandle comm,
                RawStream stream) {
  return Calls(api, wire, op, comm, stream).run();
}

}  // namespace aliquot::nccl
