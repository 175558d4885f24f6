// A launch on the host: the loop over blocks and threads.  Blocks, and the
// threads of a block, run in orders drawn from `seed` (0: ascending).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "doubles/cuda_shim/cuda_shim.h"

namespace shim {

// kThread: threads never wait for each other; kBlock: written in phases.
enum Kind { kThread, kBlock };

inline std::atomic<uint64_t> seed{0};
inline std::atomic<int> workers{1};

inline std::vector<unsigned> order_of(uint32_t count, uint64_t salt) {
  std::vector<unsigned> order(count);
  for (uint32_t i = 0; i < count; ++i) order[i] = i;
  if (salt == 0) return order;
  std::mt19937_64 rng(salt);
  std::shuffle(order.begin(), order.end(), rng);
  return order;
}

struct Shape {
  uint32_t grid, block;
  uint64_t salt;
};

template <typename Args>
using Kernel = void (*)(const Args);

template <typename Args>
void run_block(Kernel<Args> kernel, Kind kind, const Args& args, Shape shape,
               unsigned block) {
  blockIdx = {block, 0, 0};
  blockDim = {shape.block, 1, 1};
  gridDim = {shape.grid, 1, 1};
  shim_threads =
      order_of(shape.block, shape.salt == 0 ? 0 : shape.salt + block);
  if (kind == kBlock) return kernel(args);
  aliquot::kernels::each_thread([&] { kernel(args); });
}

// Worker w of n takes every n-th block of the order.
template <typename Args>
void run_grid(Kernel<Args> kernel, Kind kind, const Args& args, Shape shape) {
  const std::vector<unsigned> order = order_of(shape.grid, shape.salt);
  const size_t n =
      std::min<size_t>(static_cast<size_t>(workers.load()), order.size());
  auto work = [&](size_t w) {
    for (size_t i = w; i < order.size(); i += n) {
      run_block(kernel, kind, args, shape, order[i]);
    }
  };
  std::vector<std::thread> others;
  for (size_t w = 1; w < n; ++w) others.emplace_back(work, w);
  work(0);
  for (std::thread& t : others) t.join();
}

template <typename Args, Kernel<Args> kKernel, Kind kKind>
void launch(void** params, uint32_t grid, uint32_t block, uint32_t) {
  Args args;
  std::memcpy(&args, params[0], sizeof(args));
  run_grid<Args>(kKernel, kKind, args, {grid, block, seed.load()});
}

}  // namespace shim
