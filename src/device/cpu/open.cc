// Opening the CPU device: a file of its own, so that a test library can put
// another device in its place.
#include "device/cpu/cpu_device.h"

namespace aliquot {

Result<std::shared_ptr<CpuDevice>> cpu_device(std::shared_ptr<Context> context,
                                              int32_t progress) {
  if (progress < ALQ_PROGRESS_AUTO || progress > ALQ_PROGRESS_ON) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "progress {} is none of AUTO (0), OFF (1), ON (2)",
                      progress);
  }
  return std::make_shared<CpuDevice>(std::move(context), progress);
}

}  // namespace aliquot
