// The table of the host's kernels.
#include "doubles/cuda_shim/host_kernels.h"

#include <string_view>

#include "doubles/cuda_shim/launch.h"
#include "kernels/cuda/kernels.h"
#include "kernels/ops.h"

namespace aliquot::kernels {

#define ALQ_DECLARE(name, Args, kind) extern "C" void name(const Args args);
ALQ_CUDA_KERNELS(ALQ_DECLARE)
#undef ALQ_DECLARE

namespace {

struct Entry {
  std::string_view name;
  CudaHostKernel launch;
};

#define ALQ_ENTRY(name, Args, kind) \
  {#name, &shim::launch<Args, &name, shim::kind>},
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

void cuda_host_seed(uint64_t seed) { shim::seed.store(seed); }

void cuda_host_workers(int count) { shim::workers.store(std::max(count, 1)); }

}  // extern "C"
