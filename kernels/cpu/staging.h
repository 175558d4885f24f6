// Shards whose dtype is not the one a kernel computes in pass through a small
// buffer, a block at a time: converted in, worked on, converted out.  Keeps the
// kernels to the dtype combinations that matter; the buffer stays in L1.
#pragma once

#include <algorithm>

#include "kernels/cpu/cpu.h"

namespace aliquot::kernels {

inline constexpr int64_t kStageCount = 512;

class Stage {
 public:
  // `inner` is f32 or f64; data of dtype `inner`, and null, are used in place.
  Stage(void* data, Dtype dtype, Dtype inner)
      : data_(static_cast<char*>(data)), dtype_(dtype), inner_(inner) {}

  bool direct() const { return data_ == nullptr || dtype_ == inner_; }

  void* in(int64_t offset, int64_t count) {
    void* at = address(offset);
    if (direct()) return at;
    cast_cpu({buffer_, at, count, inner_, dtype_, 1.0});
    return buffer_;
  }

  void out(int64_t offset, int64_t count) {
    if (direct()) return;
    cast_cpu({address(offset), buffer_, count, dtype_, inner_, 1.0});
  }

 private:
  void* address(int64_t offset) const {
    return data_ == nullptr ? nullptr : data_ + offset * dtype_size(dtype_);
  }

  char* data_;
  Dtype dtype_, inner_;
  alignas(64) double buffer_[kStageCount];
};

}  // namespace aliquot::kernels
