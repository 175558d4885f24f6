// Writing, reading and viewing parameters, gradients and optimizer states.
// Each rank touches the part it owns; a read gathers in bounded chunks.
#include <algorithm>
#include <vector>

#include "engine/engine.h"

namespace aliquot::engine {

namespace {

constexpr int64_t kChunk = int64_t{1} << 18;  // elements moved at a time

const char* what_name(int32_t what) {
  switch (what) {
    case ALQ_VALUE: return "VALUE";
    case ALQ_GRAD: return "GRAD";
    case ALQ_STATE_0: return "STATE_0";
    case ALQ_STATE_1: return "STATE_1";
    default: return "?";
  }
}

Status check_range(const Param& param, const char* verb, const void* data,
                   int64_t begin, int64_t count) {
  bool inside = begin >= 0 && count >= 0 && begin <= param.count - count;
  if (inside && (count == 0 || data != nullptr)) return {};
  return make_error(
      ALQ_OUT_OF_RANGE,
      "parameter \"{}\" has {} elements; cannot {} {} from element {}{}",
      param.name, param.count, verb, count, begin,
      data == nullptr ? ": the pointer is null" : "");
}

}  // namespace

// Room for what a read gathers.  On CPU the host's own memory; else the
// device's, which the host reads through `host`.
struct Engine::Scratch {
  std::vector<std::byte> host, own[2];
  std::unique_ptr<Memory> memory[2];

  Result<std::byte*> take(Device* device, size_t which, int64_t bytes) {
    if (!device->asynchronous()) {
      own[which].resize(static_cast<size_t>(bytes));
      return own[which].data();
    }
    std::unique_ptr<Memory>& at = memory[which];
    if (bytes > 0 && (at == nullptr || at->bytes() < bytes)) {
      at.reset();
      ALQ_ASSIGN(at, device->allocate(bytes, "read"));
    }
    return at == nullptr ? nullptr : at->data();
  }
};

// Elements of the parameter in a range of its segment, cut to [begin, end).
Range Engine::overlap(const Param& param, const Range& range, int64_t begin,
                      int64_t end) const {
  int64_t from = std::max(range.begin - param.offset, begin);
  int64_t to = std::min(range.end() - param.offset, end);
  return {from, std::max<int64_t>(to - from, 0)};
}

Result<Engine::Part> Engine::part_of(int32_t id, int32_t what) const {
  const Param& param = model_.params[static_cast<size_t>(id)];
  const SegmentPlan& p = executor_->segment_of(param);
  const Optimizer& optimizer =
      optimizers_[static_cast<size_t>(param.optim_group)];
  Region region;
  Part part;
  if (what == ALQ_VALUE) {
    region = param.trainable ? p.master : p.own_params;
    part.dtype = param.trainable ? p.master_dtype : p.dtype;
  } else if (what == ALQ_GRAD && param.trainable) {
    region = p.final;
    part.dtype = p.accum_dtype;
  } else if ((what == ALQ_STATE_0 || what == ALQ_STATE_1) && param.trainable &&
             what - ALQ_STATE_0 < optimizer.states()) {
    region = p.state[what - ALQ_STATE_0];
    part.dtype = p.state_dtype;
  }
  if (!region.exists()) {
    return make_error(ALQ_NOT_FOUND, "parameter \"{}\" ({}) has no {} ({})",
                      param.name, param.trainable ? "trainable" : "frozen",
                      what_name(what), what);
  }
  part.extent = p.extent;
  part.common = p.together && region.home == Home::kCommon;
  Range mine = overlap(param, p.own, 0, param.count);
  part.begin = std::clamp<int64_t>(mine.begin, 0, param.count);
  part.count = mine.count;
  int64_t skipped =
      part.count > 0 ? param.offset + mine.begin - p.own.begin : 0;
  part.data = executor_->at(region) + skipped * dtype_size(part.dtype);
  return part;
}

Status Engine::meet(const char* label) {
  Coll barrier;
  barrier.label = label;
  return groups_.exchange->issue(barrier, nullptr, nullptr);
}

// Peers may still be reading shards of the last microbatch: meet them once.
Status Engine::settle() {
  if (core_->in_microbatch()) {
    return explain({CoreCode::kInMicrobatch}, "parameter access", -1, 0);
  }
  ALQ_TRY(executor_->drain(deadline()));
  ALQ_TRY(catch_up());
  if (!gathered_since_sync_) return {};
  ALQ_TRY(meet("parameter access"));
  // While units are held, ranks may run different numbers of microbatches, so
  // none can tell whether the others meet: all always do.
  gathered_since_sync_ = core_->needed() > 0;
  return {};
}

// Where a master was written, the compute copy is the master rounded.
Status Engine::round_masters() {
  for (const BundlePlan& b : plan_.bundles) {
    for (const SegmentPlan& p : b.segments) {
      if (p.grad_dtype == 0 || p.master_dtype == p.dtype) continue;
      if (p.own.count == 0) continue;
      kernels::CastArgs round{executor_->at(p.own_params),
                              executor_->at(p.master),
                              p.own.count,
                              p.dtype,
                              p.master_dtype,
                              1.0};
      ALQ_TRY(device_->launch(nullptr, kernels::OpCode::kCast, &round,
                              sizeof round));
    }
  }
  return {};
}

Status Engine::param_touch() {
  ALQ_TRY(need_committed("param_touch"));
  if (!core_->in_microbatch()) ALQ_TRY(record({CallKind::kTouch}));
  return touch();
}

Status Engine::touch() {
  grads_exposed_ = true;
  ALQ_TRY(settle());
  ALQ_TRY(round_masters());
  ALQ_TRY(meet("param_touch"));
  core_->touch();
  dirty_ = false;
  return act(nullptr);
}

Status Engine::param_write(int32_t id, int32_t what, const void* data,
                           int64_t begin, int64_t count, Dtype dtype) {
  ALQ_TRY(need_committed("param_write"));
  if (what == ALQ_GRAD) grads_exposed_ = true;
  ALQ_TRY(check_param(id));
  const Param& param = model_.params[static_cast<size_t>(id)];
  ALQ_TRY(check_range(param, "write", data, begin, count));
  ALQ_ASSIGN(Part part, part_of(id, what));
  if (dtype == 0) dtype = param.dtype;
  if (dtype != part.dtype && !(is_float(dtype) && is_float(part.dtype))) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "parameter \"{}\": cannot convert {} to {}", param.name,
                      dtype_name(dtype), dtype_name(part.dtype));
  }
  if (!core_->in_microbatch()) ALQ_TRY(record(OtherCall::kWrite));
  ALQ_TRY(settle());
  if (part.common) ALQ_TRY(meet("parameter access"));
  dirty_ = true;
  ALQ_TRY(write_own(param, what, part, data, {begin, count}, dtype));
  // Held units show it at once: their passes are not collective.
  return core_->needed() > 0 ? touch() : Status{};
}

// The part of [range) that this rank owns, out of data in `dtype`.
Status Engine::write_own(const Param& param, int32_t what, const Part& part,
                         const void* data, const Range& range, Dtype dtype) {
  int64_t begin = range.begin, count = range.count;
  int64_t from = std::max(begin, part.begin);
  int64_t n = std::min(begin + count, part.begin + part.count) - from;
  if (n <= 0) return {};
  const std::byte* src =
      static_cast<const std::byte*>(data) + (from - begin) * dtype_size(dtype);
  std::byte* dst = part.data + (from - part.begin) * dtype_size(part.dtype);
  ALQ_TRY(write_from_host(dst, part.dtype, src, dtype, n));
  const SegmentPlan& p = executor_->segment_of(param);
  if (what != ALQ_VALUE || part.dtype == p.dtype) return {};
  // The compute copy is the master rounded.
  std::byte* model = executor_->at(p.own_params) +
                     (param.offset + from - p.own.begin) * dtype_size(p.dtype);
  kernels::CastArgs round{model, dst, n, p.dtype, part.dtype, 1.0};
  return device_->launch(nullptr, kernels::OpCode::kCast, &round, sizeof round);
}

Status Engine::copy(void* dst, const void* src, int64_t bytes) {
  return launch(nullptr, kernels::OpCode::kCopy,
                kernels::CopyArgs{dst, src, bytes});
}

// Kernels may be out of reach of src, copies are not.
Status Engine::write_from_host(std::byte* dst, Dtype dst_dtype,
                               const std::byte* src, Dtype src_dtype,
                               int64_t count) {
  int64_t size = dtype_size(dst_dtype);
  if (dst_dtype == src_dtype) return copy(dst, src, count * size);
  if (!device_->asynchronous()) {
    return launch(
        nullptr, kernels::OpCode::kCast,
        kernels::CastArgs{dst, src, count, dst_dtype, src_dtype, 1.0});
  }
  std::vector<std::byte> cast(
      static_cast<size_t>(std::min(count, kChunk) * size));
  for (int64_t done = 0; done < count; done += kChunk) {
    int64_t n = std::min(kChunk, count - done);
    kernels::CastArgs args{cast.data(), src + done * dtype_size(src_dtype),
                           n,           dst_dtype,
                           src_dtype,   1.0};
    kernels::run_cpu(kernels::OpCode::kCast, &args);
    ALQ_TRY(copy(dst + done * size, cast.data(), n * size));
  }
  return {};
}

// Fills scratch 0 with elements [begin, begin + count) of the parameter out of
// the ranks' parts: first each shard from its replicas, then all from the
// shards.
Status Engine::collect(const Param& param, const Part& part, int64_t begin,
                       int64_t count, Scratch* scratch) {
  const DataAxes& axes = plan_.axes;
  const Segment& segment = model_.bundles[static_cast<size_t>(param.bundle)]
                               .segments[static_cast<size_t>(param.segment)];
  int64_t size = dtype_size(part.dtype);
  auto range = [&](Extent extent, int32_t shard, int32_t replica) {
    return overlap(param, segment.range(extent, shard, replica), begin,
                   begin + count);
  };
  Range own = range(part.extent, axes.shard_index, axes.replica_index);
  const std::byte* src =
      part.data + std::max<int64_t>(own.begin - part.begin, 0) * size;
  Coll coll;
  coll.kind = CollKind::kAllGather;
  coll.dtype = part.dtype;
  coll.label = param.name.c_str();
  std::vector<int64_t> counts;
  if (part.extent == Extent::kPart) {
    for (int32_t r = 0; r < axes.replicas; ++r) {
      counts.push_back(range(Extent::kPart, axes.shard_index, r).count);
    }
    own = range(Extent::kShard, axes.shard_index, 0);
    ALQ_ASSIGN(std::byte * shard,
               scratch->take(device_.get(), 1, own.count * size));
    coll.src = src;
    coll.dst = shard;
    coll.counts = counts;
    ALQ_TRY(groups_.assemble->issue(coll, nullptr, nullptr));
    src = shard;
  }
  counts.clear();
  for (int32_t s = 0; s < axes.shards; ++s) {
    counts.push_back(range(Extent::kShard, s, 0).count);
  }
  coll.src = src;
  ALQ_ASSIGN(coll.dst, scratch->take(device_.get(), 0, count * size));
  coll.counts = counts;
  return groups_.gather->issue(coll, nullptr, nullptr);
}

Status Engine::read_chunk(int32_t id, const Part& part, void* data,
                          int64_t begin, int64_t count, Dtype dtype,
                          Scratch* scratch) {
  const Param& param = model_.params[static_cast<size_t>(id)];
  int64_t size = dtype_size(part.dtype);
  const std::byte* whole = part.data + (begin - part.begin) * size;
  if (part.extent != Extent::kWhole) {
    ALQ_TRY(collect(param, part, begin, count, scratch));
    ALQ_ASSIGN(whole, scratch->take(device_.get(), 0, count * size));
  }
  if (data == nullptr) return {};
  if (dtype == part.dtype) return copy(data, whole, count * size);
  if (device_->asynchronous()) {
    scratch->host.resize(static_cast<size_t>(count * size));
    ALQ_TRY(copy(scratch->host.data(), whole, count * size));
    whole = scratch->host.data();
  }
  kernels::CastArgs cast{data, whole, count, dtype, part.dtype, 1.0};
  kernels::run_cpu(kernels::OpCode::kCast, &cast);
  return {};
}

Status Engine::param_read(int32_t id, int32_t what, void* data, int64_t begin,
                          int64_t count, Dtype dtype) {
  ALQ_TRY(need_committed("param_read"));
  if (what == ALQ_GRAD) grads_exposed_ = true;
  ALQ_TRY(check_param(id));
  const Param& param = model_.params[static_cast<size_t>(id)];
  ALQ_TRY(check_range(param, "read", data, begin, count));
  ALQ_ASSIGN(Part part, part_of(id, what));
  if (dtype == 0) dtype = part.dtype;
  if (dtype != part.dtype && !(is_float(dtype) && is_float(part.dtype))) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "parameter \"{}\": cannot convert {} to {}", param.name,
                      dtype_name(part.dtype), dtype_name(dtype));
  }
  if (!core_->in_microbatch()) {
    // Where every rank has the whole, each reads what it likes.
    bool whole = part.extent == Extent::kWhole;
    ALQ_TRY(record({CallKind::kRead, static_cast<int16_t>(what), id,
                    whole ? 0 : begin, whole ? 0 : count}));
  }
  return read(id, part, static_cast<std::byte*>(data), begin, count, dtype);
}

// data null: only for the others.
Status Engine::read(int32_t id, const Part& part, std::byte* data,
                    int64_t begin, int64_t count, Dtype dtype) {
  ALQ_TRY(settle());
  Scratch scratch;
  for (int64_t done = 0; done < count; done += kChunk) {
    int64_t n = std::min(kChunk, count - done);
    std::byte* to = data == nullptr ? nullptr : data + done * dtype_size(dtype);
    ALQ_TRY(read_chunk(id, part, to, begin + done, n, dtype, &scratch));
  }
  return {};
}

Status Engine::shard_view(int32_t id, int32_t what, alq_shard* out) {
  ALQ_TRY(need_committed("shard_view"));
  if (what == ALQ_GRAD) grads_exposed_ = true;
  ALQ_TRY(check_param(id));
  ALQ_ASSIGN(Part part, part_of(id, what));
  out->data = part.data;
  out->begin = part.begin;
  out->count = part.count;
  out->dtype = part.dtype;
  out->flags = part.common ? ALQ_SHARD_COMMON : 0;
  out->reserved = 0;
  return {};
}

}  // namespace aliquot::engine
