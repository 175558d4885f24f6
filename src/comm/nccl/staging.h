// What NCCL does not do itself: results in another dtype, results added to what
// is there, premultiplied sums of half types, host memory.  Elements pass
// through scratch memory and the kernels cast and accumulate.
//
// NCCL sums in one dtype, that of src and dst where they are equal (so bf16
// into bf16 is rounded between ranks), else in f32, or in f64 if either is.
#pragma once

#include <memory>
#include <vector>

#include "comm/nccl/transfer.h"
#include "comm/normalize.h"
#include "device/device.h"

namespace aliquot::nccl {

// Device memory for one operation at a time, grown on first use.  A block that
// a capture has seen is never freed, for replays use it.
class Scratch {
 public:
  Status reserve(Device& device, Stream& stream, int64_t bytes, bool capturing,
                 const std::string& group);
  std::byte* data() const { return memory_ ? memory_->data() : nullptr; }

 private:
  std::shared_ptr<Memory> memory_;
  std::vector<std::shared_ptr<Memory>> captured_;
  bool seen_ = false;  // by a capture
};

class Staging {
 public:
  // coll is checked.  host_src, host_dst: kernels can not use that memory.
  Staging(const GroupPlace& place, const Coll& coll, bool host_src,
          bool host_dst);

  int64_t scratch_bytes() const { return bytes_; }
  // Kernels before NCCL; fills in wire.
  Status before(Device& device, Stream& stream, std::byte* scratch);
  // Kernels after it.
  Status after(Device& device, Stream& stream);
  // The result into host memory, once the operation is done: such a copy may
  // block the host until the stream gets there, and nothing would bound that.
  Status fetch(Device& device, Stream& stream);
  bool uses_host() const { return host_in_ >= 0 || host_out_ >= 0; }

  const Wire& wire() const { return wire_; }

 private:
  int64_t take(int64_t bytes);

  const Coll coll_;
  Wire wire_;
  CollBytes sizes_;
  Dtype sum_ = 0;
  int64_t in_count_ = 0, out_count_ = 0;
  bool casts_in_ = false, converts_out_ = false;
  int64_t bytes_ = 0;
  int64_t host_in_ = -1, host_out_ = -1, sum_in_ = -1, sum_out_ = -1,
          onto_ = -1;  // offsets in scratch
  std::byte* scratch_ = nullptr;
  std::byte* dst_ = nullptr;  // where the result is put by kernels
};

// The dtype that the sum is formed in; 0 for what only moves data.
Dtype sum_dtype(const Coll& coll);

}  // namespace aliquot::nccl
