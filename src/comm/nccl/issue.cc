// Issuing one operation: under the device's order, behind what was issued
// before, kernels and NCCL calls on one stream, then an event.
#include <algorithm>
#include <cstring>

#include "comm/nccl/core.h"

namespace aliquot::nccl {
namespace {

// A factor as NCCL reads it: in the dtype of the sum.
union Scalar {
  float f32;
  double f64;
};

NcclOp plain_op(alq_reduce_op op) {
  switch (op) {
    case ALQ_AVG: return kAvg;
    case ALQ_MIN: return kMin;
    case ALQ_MAX: return kMax;
    default: return kSum;
  }
}

}  // namespace

Status NcclCore::supported(const Coll& coll) const {
  if (coll.bad != nullptr || coll.norm != nullptr) {
    return make_error(ALQ_UNSUPPORTED,
                      "{} on group \"{}\": NCCL neither looks for elements "
                      "that are not finite nor adds up squares on the way; "
                      "launch kernels for it",
                      coll_name(coll.kind), name);
  }
  if (!is_reduction(coll.kind)) return {};
  if (!sum_type(sum_dtype(coll)).has_value()) {
    return make_error(ALQ_UNSUPPORTED,
                      "{} on group \"{}\": NCCL does not reduce {}; use a "
                      "32-bit integer",
                      coll_name(coll.kind), name, dtype_name(coll.dtype));
  }
  if (coll.accumulate && !is_float(coll.dtype)) {
    return make_error(ALQ_UNSUPPORTED,
                      "{} on group \"{}\": accumulating {} is not supported "
                      "on CUDA; reduce without it and add the result",
                      coll_name(coll.kind), name, dtype_name(coll.dtype));
  }
  return {};
}

Call NcclCore::describe(const Coll& coll) const {
  Call call = {};
  call.kind = static_cast<int32_t>(coll.kind);
  call.dtype = coll.dtype;
  call.out_dtype = coll.out_dtype;
  call.op = is_reduction(coll.kind) ? coll.op : 0;
  call.root = is_rooted(coll.kind) ? coll.root : 0;
  if (coll.accumulate) call.flags |= kCallAccumulate;
  if (coll.factor.has_value()) call.flags |= kCallPremul;
  // The counts of all_to_all_v differ between ranks.
  if (coll.kind == CollKind::kAllToAllV) return call;
  call.count = coll.count;
  for (size_t q = 0; q < coll.counts.size(); ++q) {
    call.count = (q == 0 ? 0 : call.count) + coll.counts[q];
  }
  return call;
}

Status NcclCore::issue(const Coll& coll, Stream* stream,
                       std::shared_ptr<Event>* event) {
  ALQ_TRY(supported(coll));
  ALQ_TRY(runtime->context->faults.point("coll.issue"));
  const Deadline deadline = Deadline::after(timeout_ns.load());
  const bool inlined = stream == nullptr;
  CudaPort& port = runtime->port;
  Stream& on = inlined ? port.internal_stream() : *stream;
  bool host_src = inlined && coll.src != nullptr && !port.visible(coll.src);
  bool host_dst = inlined && coll.dst != nullptr && !port.visible(coll.dst);
  Staging staging(place(), coll, host_src, host_dst);
  // Copies from host memory may block: then only behind what is done.
  if (staging.uses_host()) ALQ_TRY(drain(deadline));

  std::shared_ptr<Event> done;
  {
    ALQ_ASSIGN(auto lock, runtime->lock(deadline, stop_when_failed()));
    if (failed()) return cause();
    CudaBound bound(port);
    ALQ_TRY(bound.status());
    ALQ_ASSIGN(uint64_t capture, port.capture(on));
    ALQ_ASSIGN(uint64_t identity, port.identity(on));
    ALQ_TRY(chain(on, identity, capture));
    ALQ_TRY(scratch_.reserve(device(), on, staging.scratch_bytes(),
                             capture != 0, name));
    uint64_t number = 0;
    Status status = enqueue(coll, staging, on, capture, &number);
    if (status.ok() && capture == 0) {
      auto tracked = track(coll, number, on);
      status = tracked.status();
      if (tracked.ok()) done = *tracked;
      last_ = {done, identity, 0};
    } else if (status.ok()) {
      status = device().record(*capture_event_, &on);
      last_ = {capture_event_, identity, capture};
      captured.store(true);
    }
    if (!status.ok()) {
      lock.unlock();
      return failed() ? cause() : fail(told(coll, number, status));
    }
    runtime->last = {this, last_.event, identity, capture};
  }
  count(coll);
  if (event != nullptr) *event = done;
  if (!inlined) return {};
  if (done == nullptr) {
    return make_error(ALQ_FAILED_PRECONDITION,
                      "{} on group \"{}\": a call without a stream can not be "
                      "captured",
                      coll_name(coll.kind), name);
  }
  ALQ_TRY(wait(*done, Deadline::never()));
  if (!staging.uses_host()) return {};
  ALQ_TRY(staging.fetch(device(), on));
  return device().synchronize(on, deadline);
}

// With the operation and who says so; it becomes the error of all ranks.
Status NcclCore::told(const Coll& coll, uint64_t number,
                      const Status& status) const {
  Tracked op;
  op.number = number;
  op.peer = is_pair(coll.kind) ? coll.root : -1;
  op.call = describe(coll);
  set_label(op, coll.label);
  return make_error(status.code(), "{}: rank {} says: {}", what(op),
                    world_rank(rank), status.message())
      .with_native(status.domain(), status.native_code())
      .with_rank(status.rank() >= 0 ? status.rank() : world_rank(rank));
}

void NcclCore::set_label(Tracked& op, const char* label) {
  size_t length = std::strlen(label);
  size_t kept = std::min(length, sizeof op.label - 1);
  std::memcpy(op.label, label + length - kept, kept);
  op.label[kept] = '\0';
}

// Waits on the device for the operation issued before.  What was recorded
// outside a capture happened before it, and the other way round a replay is
// ordered by the stream it is launched on.
Status NcclCore::chain(Stream& stream, uint64_t identity, uint64_t capture) {
  const bool own = last_.event != nullptr && last_.capture == capture;
  if (own && last_.stream != identity) {
    ALQ_TRY(device().wait(&stream, *last_.event, Deadline::after(0)));
  }
  const Runtime::Last& last = runtime->last;
  if (!runtime->chains || last.event == nullptr || last.group == this ||
      last.capture != capture || last.stream == identity) {
    return {};
  }
  return device().wait(&stream, *last.event, Deadline::after(0));
}

Status NcclCore::enqueue(const Coll& coll, Staging& staging, Stream& stream,
                         uint64_t, uint64_t* number) {
  if (!is_pair(coll.kind)) {
    const bool own = coll.kind == CollKind::kAllToAllV;
    *number = board->publish(describe(coll),
                             own ? std::span<const int64_t>() : coll.counts,
                             coll.label);
  }
  ALQ_TRY(staging.before(device(), stream, scratch_.data()));
  Wire wire = staging.wire();
  if (coll.kind == CollKind::kBarrier) {
    wire.src = wire.dst = token_->data();
  }
  ALQ_TRY(call_nccl(wire, stream));
  return staging.after(device(), stream);
}

Result<NcclOp> NcclCore::premultiplied(const Wire& wire, CommHandle comm) {
  Scalar scalar;
  if (wire.dtype == ALQ_F64) {
    scalar.f64 = *wire.factor;
  } else {
    scalar.f32 = static_cast<float>(*wire.factor);
  }
  NcclOp op = kSum;
  NcclResult result = runtime->api.premul_sum(
      &op, &scalar, *sum_type(wire.dtype), kScalarOnHost, comm);
  if (result != kSuccess) {
    return runtime->error("ncclRedOpCreatePreMulSum", result, comm);
  }
  return op;
}

Status NcclCore::call_nccl(const Wire& wire, Stream& stream) {
  const CommHandle comm = comm_.load();
  if (comm == nullptr) return cause();
  NcclOp op = plain_op(wire.op);
  if (wire.factor.has_value()) {
    ALQ_ASSIGN(op, premultiplied(wire, comm));
  }
  Called called =
      transfer(runtime->api, wire, op, comm, runtime->port.native(stream));
  Status status;
  // Nothing may be put on the stream before the communicator is through.
  if (called.function[0] != '\0') {
    status =
        runtime->settle(called.function, called.result, comm,
                        Deadline::after(timeout_ns.load()), stop_when_failed());
  }
  if (wire.factor.has_value()) {
    static_cast<void>(runtime->api.op_destroy(op, comm));
  }
  return status;
}

Result<std::shared_ptr<Event>> NcclCore::track(const Coll& coll,
                                               uint64_t number,
                                               Stream& stream) {
  std::lock_guard lock(track_mutex_);
  if (next_ - first_ == kTracked) ++first_;  // the oldest is not followed on
  Tracked& slot = tracked_[next_++ % kTracked];
  // A handle may still look at the event, so does last_.
  if (slot.event == nullptr || slot.event.use_count() > 1) {
    ALQ_ASSIGN(slot.event, device().create_event());
  }
  slot.number = number;
  slot.peer = is_pair(coll.kind) ? coll.root : -1;
  slot.call = describe(coll);
  set_label(slot, coll.label);
  slot.since = now_ns();
  slot.live = true;
  ALQ_TRY(device().record(*slot.event, &stream));
  return slot.event;
}

void NcclCore::count(const Coll& coll) {
  CollBytes bytes = coll_bytes(place(), coll);
  ops_.fetch_add(1, std::memory_order_relaxed);
  read_.fetch_add(bytes.src, std::memory_order_relaxed);
  written_.fetch_add(bytes.dst, std::memory_order_relaxed);
  received_.fetch_add(received_bytes(coll, rank, size),
                      std::memory_order_relaxed);
}

}  // namespace aliquot::nccl
