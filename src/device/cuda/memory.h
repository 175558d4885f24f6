// Device memory and pinned host memory, zeroed.
#pragma once

#include <memory>
#include <string>

#include "device/cuda/core.h"
#include "device/device.h"

namespace aliquot::cuda {

Result<std::unique_ptr<Memory>> allocate_device(std::shared_ptr<CudaCore> core,
                                                int64_t bytes,
                                                const std::string& label,
                                                Deadline deadline);
Result<std::unique_ptr<Memory>> allocate_pinned(std::shared_ptr<CudaCore> core,
                                                int64_t bytes,
                                                const std::string& label);

}  // namespace aliquot::cuda
