// The kernels of one device: the module, loaded when the device is opened, and
// all its functions, so that no launch loads anything.
#pragma once

#include <memory>
#include <string_view>
#include <unordered_map>

#include "device/cuda/core.h"
#include "kernels/cuda/image.h"

namespace aliquot::cuda {

class KernelTable {
 public:
  static Result<std::unique_ptr<KernelTable>> load(
      std::shared_ptr<CudaCore> core, kernels::CudaImage image);
  ~KernelTable();
  KernelTable(const KernelTable&) = delete;
  KernelTable& operator=(const KernelTable&) = delete;

  Result<CUfunction> find(const char* name) const;

 private:
  explicit KernelTable(std::shared_ptr<CudaCore> core)
      : core_(std::move(core)) {}

  const std::shared_ptr<CudaCore> core_;
  CUmodule module_ = nullptr;
  std::unordered_map<std::string_view, CUfunction> functions_;
};

}  // namespace aliquot::cuda
