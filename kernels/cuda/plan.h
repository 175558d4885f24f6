// Which kernel runs an operation of ops.h on a GPU, and how wide.  Pure: looks
// at the arguments only, so that a captured launch stays right on replay.
// Every kernel takes one parameter, the operation's arguments by value, and is
// right for any grid; the plan's grid is the fast one.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace aliquot::kernels {

struct CudaLaunch {
  const char* kernel;  // of kernels/cuda/kernels.h; null: nothing to do
  uint32_t grid, block, shared_bytes;
};

// `multiprocessors` of the device; kernel null also for dtypes that the
// operation does not take, which change nothing on any target.
CudaLaunch cuda_plan(OpCode op, const void* args, int32_t multiprocessors);

}  // namespace aliquot::kernels
