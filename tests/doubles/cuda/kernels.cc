// Modules and launches.  A kernel is a function of the host: one that a test
// has added, or a .cu source compiled for it.
#include "kernels/cuda/kernels.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "kernels/ops.h"
#include "tests/doubles/cuda/memory.h"
#include "tests/doubles/cuda/stream.h"
#include "tests/doubles/cuda_shim/host_kernels.h"

namespace aliquot::cuda_double {
namespace {

// The largest argument struct of the kernel table.
constexpr size_t kMostBytes = 256;

// Also CUfunc_st.
struct Kernel {
  std::string name;
  DoubleKernel run = nullptr;
  size_t bytes = kMostBytes;
  int64_t count_at = -1;    // where the struct keeps its number of elements
  int64_t scalars_at = -1;  // and an optimizer's what was decided
};

template <typename Args>
constexpr int64_t count_offset() {
  if constexpr (requires(Args a) { a.count; }) {
    return offsetof(Args, count);
  } else {
    return -1;
  }
}

template <typename Args>
constexpr int64_t scalars_offset() {
  constexpr bool kOptimizer = std::is_same_v<Args, kernels::AdamWArgs> ||
                              std::is_same_v<Args, kernels::SgdArgs>;
  if constexpr (kOptimizer) {
    return offsetof(Args, scalars);
  } else {
    return -1;
  }
}

// Those of kernels/cuda, compiled for the host.
std::map<std::string, Kernel>* compiled() {
  using namespace aliquot::kernels;
  auto* table = new std::map<std::string, Kernel>;
#define DOUBLE_KERNEL(name, Args, kind)                               \
  (*table)[#name] = {                                                 \
      #name, reinterpret_cast<DoubleKernel>(cuda_host_kernel(#name)), \
      sizeof(Args), count_offset<Args>(), scalars_offset<Args>()};
  ALQ_CUDA_KERNELS(DOUBLE_KERNEL)
#undef DOUBLE_KERNEL
  return table;
}

std::map<std::string, Kernel>& kernels() {
  static auto* k = compiled();
  return *k;
}

// Of an argument struct, copied at launch.
struct Parameter {
  alignas(64) std::array<std::byte, kMostBytes> bytes = {};
};

// The first and the next one that is not null either.
void swap_words(Parameter& p) {
  uint64_t words[6];
  std::memcpy(words, p.bytes.data(), sizeof words);
  size_t other = 1;
  while (other < 5 && words[other] == 0) ++other;
  std::swap(words[0], words[other]);
  std::memcpy(p.bytes.data(), words, sizeof words);
}

void shorten(Parameter& p, int64_t offset) {
  int64_t n = 0;
  std::memcpy(&n, p.bytes.data() + offset, sizeof n);
  --n;
  std::memcpy(p.bytes.data() + offset, &n, sizeof n);
}

// As if the step was taken.
void take_step(Parameter& p, int64_t offset, kernels::StepScalars* own) {
  const kernels::StepScalars* decided = nullptr;
  std::memcpy(&decided, p.bytes.data() + offset, sizeof decided);
  *own = *decided;
  own->skip = 0;
  std::memcpy(p.bytes.data() + offset, &own, sizeof own);
}

StreamImpl* another_stream(StreamImpl* stream) {
  for (StreamImpl* other : handles().streams) {
    if (other != stream && other->context == stream->context &&
        other->capture == nullptr && other->number > 1) {
      return other;
    }
  }
  return stream;
}

// An image as nvcc makes it, or the text that stands for one in tests.
bool is_image(const void* image) {
  constexpr uint32_t kFatbin = 0xba55ed50;
  uint32_t magic = 0;
  std::memcpy(&magic, image, sizeof magic);
  auto begins = [&](const char* text) {
    return std::strncmp(static_cast<const char*>(image), text,
                        std::strlen(text)) == 0;
  };
  return magic == kFatbin || begins("\177ELF") || begins("//") ||
         begins("aliquot double");
}

// What ALIQUOT_DOUBLE_KERNELS names adds its kernels when it is loaded.
void load_more_kernels() {
  static const bool once = [] {
    const char* path = std::getenv("ALIQUOT_DOUBLE_KERNELS");
    if (path != nullptr && dlopen(path, RTLD_NOW | RTLD_LOCAL) == nullptr) {
      violation("ALIQUOT_DOUBLE_KERNELS: %s", dlerror());
    }
    return true;
  }();
  static_cast<void>(once);
}

CUresult check_shape(unsigned grid_x, unsigned grid_y, unsigned grid_z,
                     unsigned block_x, unsigned block_y, unsigned block_z,
                     unsigned shared) {
  if (grid_x == 0 || block_x == 0 || block_x > 1024 || shared > 48 * 1024) {
    violation("launch of grid %u, block %u, %u shared bytes", grid_x, block_x,
              shared);
    return kInvalidValue;
  }
  if (grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1) {
    violation("only grids of one dimension are known here");
    return kInvalidValue;
  }
  return kSuccess;
}

CUresult enqueue(const Kernel& kernel, unsigned grid, unsigned block,
                 unsigned shared, CUstream stream, void* argument) {
  auto parameter = std::make_shared<Parameter>();
  std::memcpy(parameter->bytes.data(), argument, kernel.bytes);
  const char* name = kernel.name.c_str();
  if (mutate("drop_launch", name)) return kSuccess;
  if (mutate("swap_arguments", name)) swap_words(*parameter);
  if (kernel.count_at >= 0 && mutate("short_tail", name)) {
    shorten(*parameter, kernel.count_at);
  }
  if (mutate("short_grid", name)) --grid;
  bool takes = kernel.scalars_at >= 0 && mutate("ignore_skip", name);
  if (mutate("default_stream", name)) stream = legacy_stream();
  const void* late = mutate("late_arguments", name) ? argument : nullptr;
  const Kernel* k = &kernel;
  StreamImpl* s = find_stream(stream, "cuLaunchKernel");
  if (s == nullptr) return kInvalidHandle;
  if (mutate("other_stream", name)) {
    stream = reinterpret_cast<CUstream>(another_stream(s));
  }
  ContextImpl* context = s->context;
  return submit(stream, "cuLaunchKernel", [=] {
    if (late != nullptr) std::memcpy(parameter->bytes.data(), late, k->bytes);
    if (CUresult failed = injected("kernel", context)) {
      context->sticky = failed;
      return;
    }
    if (grid == 0) return;
    // A kernel may change its parameters; the next replay has them afresh.
    Parameter own = *parameter;
    kernels::StepScalars scalars;
    if (takes) take_step(own, k->scalars_at, &scalars);
    void* parameters[] = {own.bytes.data()};
    k->run(parameters, grid, block, shared);
  });
}

}  // namespace
}  // namespace aliquot::cuda_double

using namespace aliquot::cuda_double;

DOUBLE_API void double_add_kernel(const char* name, DoubleKernel run,
                                  size_t bytes) {
  Lock lock(state().mutex);
  kernels()[name] = {name, run, std::min(bytes, kMostBytes)};
}

DOUBLE_API CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  load_more_kernels();
  Lock lock(state().mutex);
  count("module");
  ContextImpl* context = current_context();
  if (context == nullptr) return kInvalidContext;
  if (CUresult failed = injected("cuModuleLoadData", context)) return failed;
  if (CUresult unsafe = check_unsafe("cuModuleLoadData")) return unsafe;
  if (image == nullptr || !is_image(image)) return kInvalidImage;
  *module = reinterpret_cast<CUmodule>(context);
  ++state().modules;
  return kSuccess;
}

DOUBLE_API CUresult cuModuleUnload(CUmodule module) {
  if (module == nullptr) return kInvalidHandle;
  Lock lock(state().mutex);
  --state().modules;
  return check_unsafe("cuModuleUnload");
}

DOUBLE_API CUresult cuModuleGetFunction(CUfunction* function, CUmodule module,
                                        const char* name) {
  Lock lock(state().mutex);
  if (module == nullptr) return kInvalidHandle;
  if (CUresult failed = injected("cuModuleGetFunction", current_context())) {
    return failed;
  }
  if (CUresult unsafe = check_unsafe("cuModuleGetFunction")) return unsafe;
  auto it = kernels().find(name);
  if (it == kernels().end()) return kNotFound;
  *function = reinterpret_cast<CUfunction>(&it->second);
  return kSuccess;
}

DOUBLE_API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x,
                                   unsigned grid_y, unsigned grid_z,
                                   unsigned block_x, unsigned block_y,
                                   unsigned block_z, unsigned shared,
                                   CUstream stream, void** parameters,
                                   void** extra) {
  Lock lock(state().mutex);
  count("launch");
  if (current_context() == nullptr) return kInvalidContext;
  if (function == nullptr) return kInvalidHandle;
  if (parameters == nullptr || extra != nullptr) return kInvalidValue;
  if (CUresult bad = check_shape(grid_x, grid_y, grid_z, block_x, block_y,
                                 block_z, shared)) {
    return bad;
  }
  return enqueue(*reinterpret_cast<Kernel*>(function), grid_x, block_x, shared,
                 stream, parameters[0]);
}
