#include "device/cuda/memory.h"

#include <cstring>

namespace aliquot::cuda {
namespace {

class CudaMemory : public Memory {
 public:
  CudaMemory(std::shared_ptr<CudaCore> core, bool pinned, void* data,
             int64_t bytes)
      : core_(std::move(core)), pinned_(pinned) {
    data_ = static_cast<std::byte*>(data);
    bytes_ = bytes;
  }
  ~CudaMemory() override {
    ContextScope scope(*core_);
    OutsideCaptures outside(core_->api());
    if (pinned_) {
      core_->api().host_free(data_);
    } else {
      core_->api().memory_free(reinterpret_cast<CUdeviceptr>(data_));
    }
  }

 private:
  const std::shared_ptr<CudaCore> core_;
  const bool pinned_;
};

Status check_bytes(int64_t bytes, const std::string& label) {
  if (bytes > 0) return {};
  return make_error(ALQ_INVALID_ARGUMENT,
                    "\"{}\" of {} bytes; ask for at least 1", label, bytes);
}

Status with_label(const Status& status, int64_t bytes,
                  const std::string& label) {
  return make_error(status.code(), "\"{}\" of {} bytes: {}", label, bytes,
                    status.message())
      .with_native(status.domain(), status.native_code());
}

}  // namespace

Result<std::unique_ptr<Memory>> allocate_device(std::shared_ptr<CudaCore> core,
                                                int64_t bytes,
                                                const std::string& label,
                                                Deadline deadline) {
  ALQ_TRY(check_bytes(bytes, label));
  ALQ_TRY(core->healthy());
  ContextScope scope(*core);
  ALQ_TRY(scope.status());
  const Driver& api = core->api();
  const auto size = static_cast<size_t>(bytes);
  CUdeviceptr address = 0;
  Status status = core->check(api.memory_alloc(&address, size), "cuMemAlloc");
  if (!status.ok()) return with_label(status, bytes, label);
  auto memory = std::make_unique<CudaMemory>(
      core, false, reinterpret_cast<void*>(address), bytes);
  ALQ_TRY(core->check(api.memset_8(address, 0, size, core->internal()),
                      "cuMemsetD8Async"));
  ALQ_TRY(core->drain(core->internal(), deadline, "zeroing memory"));
  return std::unique_ptr<Memory>(std::move(memory));
}

Result<std::unique_ptr<Memory>> allocate_pinned(std::shared_ptr<CudaCore> core,
                                                int64_t bytes,
                                                const std::string& label) {
  ALQ_TRY(check_bytes(bytes, label));
  ALQ_TRY(core->healthy());
  ContextScope scope(*core);
  ALQ_TRY(scope.status());
  void* address = nullptr;
  Status status =
      core->check(core->api().host_alloc(&address, static_cast<size_t>(bytes),
                                         kHostPortable | kHostMapped),
                  "cuMemHostAlloc");
  if (!status.ok()) return with_label(status, bytes, label);
  std::memset(address, 0, static_cast<size_t>(bytes));
  return std::unique_ptr<Memory>(
      std::make_unique<CudaMemory>(std::move(core), true, address, bytes));
}

}  // namespace aliquot::cuda
