#include "device/cuda/kernel_table.h"

#include "kernels/cuda/kernels.h"

namespace aliquot::cuda {
namespace {

#define ALQ_NAME(name, args, kind) #name,
constexpr const char* kNames[] = {ALQ_CUDA_KERNELS(ALQ_NAME)};
#undef ALQ_NAME

}  // namespace

Result<std::unique_ptr<KernelTable>> KernelTable::load(
    std::shared_ptr<CudaCore> core, kernels::CudaImage image) {
  std::unique_ptr<KernelTable> table(new KernelTable(std::move(core)));
  CudaCore& c = *table->core_;
  ContextScope scope(c);
  ALQ_TRY(scope.status());
  // Another thread of the process may be capturing.
  OutsideCaptures outside(c.api());
  ALQ_TRY(c.check(c.api().module_load(&table->module_, image.data),
                  "cuModuleLoadData"));
  for (const char* name : kNames) {
    CUfunction function = nullptr;
    CUresult result = c.api().module_function(&function, table->module_, name);
    // A card or image without it: an error for who launches it.
    if (result == kNotFound) continue;
    ALQ_TRY(c.check(result, "cuModuleGetFunction"));
    table->functions_[name] = function;
  }
  return table;
}

KernelTable::~KernelTable() {
  if (module_ == nullptr) return;
  ContextScope scope(*core_);
  OutsideCaptures outside(core_->api());
  core_->api().module_unload(module_);
}

Result<CUfunction> KernelTable::find(const char* name) const {
  auto it = functions_.find(name);
  if (it != functions_.end()) return it->second;
  return make_error(ALQ_INTERNAL,
                    "the GPU kernels have no {}; is the file of the hint "
                    "cuda_image from another version?",
                    name);
}

}  // namespace aliquot::cuda
