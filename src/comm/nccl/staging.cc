#include "comm/nccl/staging.h"

#include "kernels/ops.h"

namespace aliquot::nccl {
namespace {

constexpr int64_t kAlign = 256;

bool is_half(Dtype dtype) { return dtype == ALQ_F16 || dtype == ALQ_BF16; }

Status copy(Device& device, Stream& stream, void* dst, const void* src,
            int64_t bytes) {
  if (bytes == 0) return {};
  kernels::CopyArgs args{dst, src, bytes};
  return device.launch(&stream, kernels::OpCode::kCopy, &args, sizeof args);
}

Status cast(Device& device, Stream& stream, const kernels::CastArgs& args) {
  if (args.count == 0) return {};
  return device.launch(&stream, kernels::OpCode::kCast, &args, sizeof args);
}

}  // namespace

Dtype sum_dtype(const Coll& coll) {
  if (!is_reduction(coll.kind)) return 0;
  if (coll.dtype != coll.out_dtype) {
    return coll.dtype == ALQ_F64 || coll.out_dtype == ALQ_F64 ? ALQ_F64
                                                              : ALQ_F32;
  }
  bool wide = coll.factor.has_value() || coll.accumulate;
  return wide && is_half(coll.dtype) ? ALQ_F32 : coll.dtype;
}

Status Scratch::reserve(Device& device, Stream& stream, int64_t bytes,
                        bool capturing, const std::string& group) {
  if (memory_ == nullptr || memory_->bytes() < bytes) {
    if (bytes == 0) return {};
    if (capturing) {
      return make_error(ALQ_FAILED_PRECONDITION,
                        "group \"{}\" needs {} bytes of scratch memory, which "
                        "can not be allocated while the stream is captured; "
                        "run the same operations once before capturing",
                        group, bytes);
    }
    ALQ_ASSIGN(auto made, device.allocate(bytes, "scratch of " + group));
    if (memory_ != nullptr) {
      if (seen_) captured_.push_back(memory_);
      // The operations that use it are before this point of the stream.
      ALQ_TRY(device.pin(stream, memory_));
    }
    memory_ = std::move(made);
    seen_ = false;
  }
  seen_ = seen_ || capturing;
  return {};
}

int64_t Staging::take(int64_t bytes) {
  int64_t at = bytes_;
  bytes_ += (bytes + kAlign - 1) / kAlign * kAlign;
  return at;
}

Staging::Staging(const GroupPlace& place, const Coll& coll, bool host_src,
                 bool host_dst)
    : coll_(coll), sizes_(coll_bytes(place, coll)), sum_(sum_dtype(coll)) {
  wire_.kind = coll.kind;
  wire_.src = static_cast<const std::byte*>(coll.src);
  wire_.dst = static_cast<std::byte*>(coll.dst);
  wire_.count = coll.count;
  wire_.counts = coll.counts;
  wire_.recv_counts = coll.recv_counts;
  wire_.dtype = sum_ != 0 ? sum_ : coll.dtype;
  wire_.op = coll.op;
  wire_.root = coll.root;
  wire_.rank = place.rank;
  wire_.size = place.size;
  if (host_src && sizes_.src > 0) host_in_ = take(sizes_.src);
  if (host_dst && sizes_.dst > 0) host_out_ = take(sizes_.dst);
  if (sum_ == 0) return;

  in_count_ = sizes_.src / dtype_size(coll.dtype);
  out_count_ = sizes_.dst / dtype_size(coll.out_dtype);
  const int64_t element = dtype_size(sum_);
  casts_in_ = coll.dtype != sum_;
  converts_out_ = coll.out_dtype != sum_ || coll.accumulate;
  // A half sum's factor is applied by the cast, unrounded.
  if (!casts_in_) wire_.factor = coll.factor;
  if (casts_in_) sum_in_ = take(in_count_ * element);
  if (converts_out_) sum_out_ = take(out_count_ * element);
  if (coll.accumulate && coll.out_dtype != sum_) {
    onto_ = take(out_count_ * element);
  }
}

Status Staging::before(Device& device, Stream& stream, std::byte* scratch) {
  scratch_ = scratch;
  dst_ = wire_.dst;
  if (host_in_ >= 0) {
    wire_.src = scratch + host_in_;
    ALQ_TRY(copy(device, stream, scratch + host_in_, coll_.src, sizes_.src));
  }
  if (host_out_ >= 0) {
    dst_ = scratch + host_out_;
    if (coll_.accumulate) {
      ALQ_TRY(copy(device, stream, dst_, coll_.dst, sizes_.dst));
    }
  }
  wire_.dst = dst_;
  if (sum_ == 0) return {};
  if (casts_in_) {
    ALQ_TRY(cast(device, stream,
                 {scratch + sum_in_, wire_.src, in_count_, sum_, coll_.dtype,
                  coll_.factor.value_or(1.0)}));
    wire_.src = scratch + sum_in_;
  }
  if (converts_out_) wire_.dst = scratch + sum_out_;
  return {};
}

Status Staging::after(Device& device, Stream& stream) {
  if (converts_out_ && out_count_ > 0) {
    const std::byte* sum = scratch_ + sum_out_;
    if (!coll_.accumulate) {
      ALQ_TRY(cast(device, stream,
                   {dst_, sum, out_count_, coll_.out_dtype, sum_, 1.0}));
    } else {
      void* onto = onto_ >= 0 ? scratch_ + onto_ : dst_;
      if (onto_ >= 0) {
        ALQ_TRY(cast(device, stream,
                     {onto, dst_, out_count_, sum_, coll_.out_dtype, 1.0}));
      }
      kernels::AccumulateArgs add{onto, sum, out_count_, sum_, sum_};
      ALQ_TRY(device.launch(&stream, kernels::OpCode::kAccumulate, &add,
                            sizeof add));
      if (onto_ >= 0) {
        ALQ_TRY(cast(device, stream,
                     {dst_, onto, out_count_, coll_.out_dtype, sum_, 1.0}));
      }
    }
  }
  return {};
}

Status Staging::fetch(Device& device, Stream& stream) {
  if (host_out_ < 0) return {};
  return copy(device, stream, coll_.dst, dst_, sizes_.dst);
}

}  // namespace aliquot::nccl
