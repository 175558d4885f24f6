// Runs an operation through the kernels of kernels/cuda, compiled for the host,
// as a device would: planned, or on another grid, in random orders.
#pragma once

#include "doubles/cuda_shim/host_kernels.h"
#include "kernels/cuda/plan.h"
#include "unit/kernels/support.h"

namespace aliquot::kernels {

inline constexpr int32_t kMultiprocessors = 3;

struct Grid {
  uint32_t grid, block;  // 0: as planned
};

template <typename Args>
void run_cuda(OpCode op, Args args, Grid grid = {0, 0}) {
  const CudaLaunch plan = cuda_plan(op, &args, kMultiprocessors);
  if (plan.kernel == nullptr) return;
  auto kernel = reinterpret_cast<CudaHostKernel>(cuda_host_kernel(plan.kernel));
  BOOST_REQUIRE_MESSAGE(kernel != nullptr, "no kernel " << plan.kernel);
  void* params[] = {&args};
  kernel(params, grid.grid == 0 ? plan.grid : grid.grid,
         grid.block == 0 ? plan.block : grid.block, plan.shared_bytes);
}

// f(grid) for the planned grid in order, then for others in random orders.
template <typename F>
void for_each_grid(F f) {
  static uint64_t seed = 0;
  cuda_host_seed(0);
  f(Grid{0, 0});
  for (const Grid grid : {Grid{0, 0}, Grid{1, 1}, Grid{1, 32}, Grid{3, 64},
                          Grid{2, 256}, Grid{7, 33}}) {
    cuda_host_seed(++seed);
    BOOST_TEST_CONTEXT("grid " << grid.grid << " of " << grid.block << ", seed "
                               << seed) {
      f(grid);
    }
  }
  cuda_host_seed(0);
}

// Around the widths of an access, of a warp and of a small grid.
inline std::vector<int64_t> cuda_counts() {
  return {0,  1,  2,  3,  4,  5,  7,  8,  9,   15,  16,  17,
          18, 31, 32, 33, 63, 65, 67, 71, 127, 129, 257, 1025};
}

}  // namespace aliquot::kernels
