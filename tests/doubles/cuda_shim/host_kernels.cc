// The table of the host's kernels, and the loop over blocks and threads.
#include "doubles/cuda_shim/host_kernels.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <string_view>
#include <thread>

#include "doubles/cuda_shim/cuda_shim.h"
#include "kernels/cuda/kernels.h"
#include "kernels/ops.h"

namespace aliquot::kernels {

#define ALQ_DECLARE(name, Args, kind) extern "C" void name(const Args args);
ALQ_CUDA_KERNELS(ALQ_DECLARE)
#undef ALQ_DECLARE

namespace {

enum Kind { kThread, kBlock };

std::atomic<uint64_t> seed{0};
std::atomic<int> workers{1};

std::vector<unsigned> order_of(uint32_t count, uint64_t salt) {
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
  each_thread([&] { kernel(args); });
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

struct Entry {
  std::string_view name;
  CudaHostKernel launch;
};

#define ALQ_ENTRY(name, Args, kind) {#name, &launch<Args, &name, kind>},
constexpr Entry kEntries[] = {ALQ_CUDA_KERNELS(ALQ_ENTRY)};
#undef ALQ_ENTRY

}  // namespace
}  // namespace aliquot::kernels

extern "C" {

void* cuda_host_kernel(const char* name) {
  for (const auto& entry : aliquot::kernels::kEntries) {
    if (entry.name == name) return reinterpret_cast<void*>(entry.launch);
  }
  return nullptr;
}

void cuda_host_seed(uint64_t seed) { aliquot::kernels::seed.store(seed); }

void cuda_host_workers(int count) {
  aliquot::kernels::workers.store(std::max(count, 1));
}

}  // extern "C"
