// Checks of one collective call, before anything is shared with peers.
#include "comm/normalize.h"

#include <cstdint>
#include <limits>
#include <span>

namespace aliquot {
namespace {

struct Range {
  uintptr_t begin = 0;
  int64_t bytes = 0;
  bool overlaps(const Range& other) const {
    if (bytes == 0 || other.bytes == 0) return false;
    return begin < other.begin + static_cast<uintptr_t>(other.bytes) &&
           other.begin < begin + static_cast<uintptr_t>(bytes);
  }
};

Range range(const void* data, int64_t bytes) {
  return {reinterpret_cast<uintptr_t>(data), bytes};
}

// So that their bytes can be counted.
constexpr int64_t kMostElements = std::numeric_limits<int64_t>::max() / 16;

Status bad_count(const GroupPlace& group, const char* name, int64_t count) {
  return make_error(ALQ_INVALID_ARGUMENT,
                    "{} on group \"{}\": count {} is negative or too large",
                    name, group.name, count);
}

// Adds counts up; refuses negative ones and sums that bytes could overflow.
Status add_counts(const GroupPlace& group, const char* name,
                  std::span<const int64_t> counts, int64_t* total) {
  *total = 0;
  for (int64_t count : counts) {
    if (count < 0 || count > kMostElements - *total) {
      return bad_count(group, name, count);
    }
    *total += count;
  }
  return {};
}

bool has_parts(CollKind kind) {
  return kind == CollKind::kAllGather || kind == CollKind::kReduceScatter ||
         kind == CollKind::kGather || kind == CollKind::kScatter ||
         kind == CollKind::kAllToAll || kind == CollKind::kAllToAllV;
}

// *total: elements of the larger buffer; of src for all_to_all_v.
Status check_counts(const GroupPlace& group, const Coll& coll, int64_t* total) {
  const char* name = coll_name(coll.kind);
  const auto size = static_cast<size_t>(group.size);
  const bool pairs = coll.kind == CollKind::kAllToAllV;
  const bool uneven = has_parts(coll.kind) && coll.kind != CollKind::kAllToAll;
  for (size_t given : {coll.counts.size(), coll.recv_counts.size()}) {
    bool fits = given == size && (uneven || pairs);
    if (given == 0 ? !pairs : fits) continue;
    return make_error(ALQ_INVALID_ARGUMENT,
                      "{} on group \"{}\": {} counts given, the group has {} "
                      "ranks",
                      name, group.name, given, size);
  }
  ALQ_TRY(add_counts(group, name, coll.recv_counts, total));
  if (!coll.counts.empty()) return add_counts(group, name, coll.counts, total);
  const int64_t parts = has_parts(coll.kind) ? group.size : 1;
  if (coll.count < 0 || coll.count > kMostElements / parts) {
    return bad_count(group, name, coll.count);
  }
  *total = coll.count * parts;
  return {};
}

Status check_reduction(const GroupPlace& group, const Coll& coll) {
  const char* name = coll_name(coll.kind);
  if (!is_float(coll.dtype) && !is_integer(coll.dtype)) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "{} on group \"{}\": {} has no arithmetic; reduce a "
                      "float or integer dtype",
                      name, group.name, dtype_name(coll.dtype));
  }
  if (coll.op < ALQ_SUM || coll.op > ALQ_MAX) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "{} on group \"{}\": reduce op {} is none of SUM, AVG, "
                      "MIN, MAX",
                      name, group.name, coll.op);
  }
  if (coll.op == ALQ_AVG && is_integer(coll.dtype)) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "{} on group \"{}\": AVG of {} is not defined; use SUM",
                      name, group.name, dtype_name(coll.dtype));
  }
  alq_reduce_op op = coll.op == ALQ_AVG ? ALQ_SUM : coll.op;
  if (!kernels::reduce_supported(coll.dtype, coll.out_dtype, op)) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "{} on group \"{}\": {} can not be reduced to {}; floats "
                      "reduce to floats, integers to their own dtype",
                      name, group.name, dtype_name(coll.dtype),
                      dtype_name(coll.out_dtype));
  }
  if (coll.accumulate && coll.kind != CollKind::kReduceScatter) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "{} on group \"{}\": only reduce_scatter accumulates",
                      name, group.name);
  }
  if (coll.factor.has_value() &&
      (!is_float(coll.dtype) || coll.op != ALQ_SUM || coll.accumulate ||
       coll.dtype != coll.out_dtype)) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "{} on group \"{}\": a premultiplied sum is one of "
                      "floats, into their own dtype, not of {}",
                      name, group.name, dtype_name(coll.dtype));
  }
  auto aligned = [](const void* p, Dtype dtype) {
    return reinterpret_cast<uintptr_t>(p) %
               static_cast<uintptr_t>(dtype_size(dtype)) ==
           0;
  };
  if (!aligned(coll.src, coll.dtype) || !aligned(coll.dst, coll.out_dtype)) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "{} on group \"{}\": src {} or dst {} is not aligned to "
                      "its elements",
                      name, group.name, fmt::ptr(coll.src), fmt::ptr(coll.dst));
  }
  return {};
}

struct Extent {
  Range src, dst;
  const void* in_place = nullptr;  // the src that makes dst in place
};

Extent extent(const GroupPlace& group, const Coll& coll, int64_t total) {
  const int64_t in = dtype_size(coll.dtype), out = dtype_size(coll.out_dtype);
  auto count_of = [&](int32_t q) {
    return coll.counts.empty() ? coll.count
                               : coll.counts[static_cast<size_t>(q)];
  };
  int64_t before = 0;
  for (int32_t q = 0; q < group.rank; ++q) before += count_of(q);
  const auto* src = static_cast<const std::byte*>(coll.src);
  auto* dst = static_cast<std::byte*>(coll.dst);
  const int64_t mine = count_of(group.rank);
  const bool root = is_rooted(coll.kind) && group.rank == coll.root;
  switch (coll.kind) {
    case CollKind::kAllReduce:
      return {range(src, total * in), range(dst, total * out),
              in == out ? dst : nullptr};
    case CollKind::kAllGather:
      return {range(src, mine * in), range(dst, total * in),
              dst == nullptr ? nullptr : dst + before * in};
    case CollKind::kReduceScatter:
      return {range(src, total * in), range(dst, mine * out),
              in == out && dst != nullptr ? dst - before * in : nullptr};
    case CollKind::kBroadcast:
      return {range(src, group.rank == coll.root ? total * in : 0),
              range(dst, total * in), dst};
    case CollKind::kAllToAll:
      return {range(src, total * in), range(dst, total * in), nullptr};
    case CollKind::kAllToAllV: {
      int64_t received = 0;
      for (int64_t count : coll.recv_counts) received += count;
      return {range(src, total * in), range(dst, received * in), nullptr};
    }
    case CollKind::kGather:
      return {range(src, mine * in), range(dst, root ? total * in : 0),
              root && dst != nullptr ? dst + before * in : nullptr};
    case CollKind::kScatter:
      return {range(src, root ? total * in : 0), range(dst, mine * in),
              root && dst != nullptr ? dst - before * in : nullptr};
    case CollKind::kReduce:
      return {range(src, total * in), range(dst, root ? total * out : 0),
              in == out ? dst : nullptr};
    case CollKind::kSend: return {range(src, total * in), {}, nullptr};
    case CollKind::kRecv: return {{}, range(dst, total * in), nullptr};
    default: return {};
  }
}

}  // namespace

Status normalize(const GroupPlace& group, Coll* coll) {
  if (coll->kind < CollKind::kAllReduce || coll->kind > CollKind::kRecv) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "group \"{}\": operation {} does not exist", group.name,
                      static_cast<int32_t>(coll->kind));
  }
  const char* name = coll_name(coll->kind);
  if (coll->label == nullptr) coll->label = "";
  if (coll->out_dtype == 0) coll->out_dtype = coll->dtype;
  if (coll->kind == CollKind::kBarrier) {
    Coll barrier;
    barrier.label = coll->label;
    barrier.out_dtype = barrier.dtype;
    *coll = barrier;
    return {};
  }
  if (dtype_size(coll->dtype) == 0 || dtype_size(coll->out_dtype) == 0) {
    return make_error(
        ALQ_INVALID_ARGUMENT, "{} on group \"{}\": unknown dtype {}", name,
        group.name,
        dtype_size(coll->dtype) == 0 ? coll->dtype : coll->out_dtype);
  }
  bool pairs = is_pair(coll->kind);
  bool rooted = pairs || is_rooted(coll->kind);
  if (rooted && (coll->root < 0 || coll->root >= group.size ||
                 (pairs && coll->root == group.rank))) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "{} on group \"{}\": {} {} is not {} rank of the "
                      "group's {}",
                      name, group.name, pairs ? "peer" : "root", coll->root,
                      pairs ? "another" : "a", group.size);
  }
  int64_t total = 0;
  ALQ_TRY(check_counts(group, *coll, &total));
  if (is_reduction(coll->kind)) {
    ALQ_TRY(check_reduction(group, *coll));
  } else if (coll->out_dtype != coll->dtype || coll->accumulate ||
             coll->factor.has_value()) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "{} on group \"{}\" moves data as it is; no other dtype "
                      "of dst, no factor and no accumulate",
                      name, group.name);
  }
  if (coll->kind == CollKind::kBroadcast) {
    if (coll->src == nullptr) coll->src = coll->dst;
    if (coll->dst == nullptr) coll->dst = const_cast<void*>(coll->src);
  }
  Extent e = extent(group, *coll, total);
  if ((e.src.bytes > 0 && coll->src == nullptr) ||
      (e.dst.bytes > 0 && coll->dst == nullptr)) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "{} of {} x {} on group \"{}\": {} is NULL", name, total,
                      dtype_name(coll->dtype), group.name,
                      coll->src == nullptr ? "src" : "dst");
  }
  if (coll->src != e.in_place && e.src.overlaps(e.dst)) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "{} on group \"{}\": src and dst overlap; pass the place "
                      "that makes it in place, or separate buffers",
                      name, group.name);
  }
  return {};
}

CollBytes coll_bytes(const GroupPlace& group, const Coll& coll) {
  int64_t total = 0;
  if (!check_counts(group, coll, &total).ok()) return {};
  Extent e = extent(group, coll, total);
  return {e.src.bytes, e.dst.bytes};
}

int64_t received_bytes(const Coll& coll, int32_t rank, int32_t size) {
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

}  // namespace aliquot
