// One collective as NCCL is asked for it: dtypes it knows, device memory.
#pragma once

#include <optional>
#include <span>

#include "comm/group.h"
#include "comm/nccl/api.h"

namespace aliquot::nccl {

struct Wire {
  CollKind kind = CollKind::kBarrier;
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  int64_t count = 0;
  std::span<const int64_t> counts = {}, recv_counts = {};
  Dtype dtype = ALQ_U8;  // reductions: in which it sums
  alq_reduce_op op = ALQ_SUM;
  std::optional<double> factor = {};
  int32_t root = 0;
  int32_t rank = 0, size = 1;
};

// The NCCL dtype of a reduction; none for 16-bit integers.
std::optional<NcclType> sum_type(Dtype dtype);

// What a call came to: the function that failed, or "".
struct Called {
  const char* function = "";
  NcclResult result = kSuccess;
};

// Makes the calls, as one group where there are several; kInProgress is no
// failure.  Parts of zero elements are left out by all who take part in them.
Called transfer(const Api& api, const Wire& wire, NcclOp op, CommHandle comm,
                RawStream stream);

}  // namespace aliquot::nccl
