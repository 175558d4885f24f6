// Version, names and build facts: no context needed.
#include <cstring>

#include "base/dtype.h"
#include "kernels/cuda/image.h"

#define ALQ_STRING_(x) #x
#define ALQ_STRING(x) ALQ_STRING_(x)

int32_t alq_version(void) {
  return ALQ_VERSION_MAJOR * 1000000 + ALQ_VERSION_MINOR * 1000 +
         ALQ_VERSION_PATCH;
}

const char* alq_status_name(alq_status status) {
  switch (status) {
    case ALQ_OK: return "ALQ_OK";
    case ALQ_CANCELLED: return "ALQ_CANCELLED";
    case ALQ_INVALID_ARGUMENT: return "ALQ_INVALID_ARGUMENT";
    case ALQ_DEADLINE_EXCEEDED: return "ALQ_DEADLINE_EXCEEDED";
    case ALQ_NOT_FOUND: return "ALQ_NOT_FOUND";
    case ALQ_ALREADY_EXISTS: return "ALQ_ALREADY_EXISTS";
    case ALQ_PERMISSION_DENIED: return "ALQ_PERMISSION_DENIED";
    case ALQ_RESOURCE_EXHAUSTED: return "ALQ_RESOURCE_EXHAUSTED";
    case ALQ_FAILED_PRECONDITION: return "ALQ_FAILED_PRECONDITION";
    case ALQ_ABORTED: return "ALQ_ABORTED";
    case ALQ_OUT_OF_RANGE: return "ALQ_OUT_OF_RANGE";
    case ALQ_UNIMPLEMENTED: return "ALQ_UNIMPLEMENTED";
    case ALQ_INTERNAL: return "ALQ_INTERNAL";
    case ALQ_UNAVAILABLE: return "ALQ_UNAVAILABLE";
    case ALQ_DATA_LOSS: return "ALQ_DATA_LOSS";
    case ALQ_UNAUTHENTICATED: return "ALQ_UNAUTHENTICATED";
    case ALQ_UNSUPPORTED: return "ALQ_UNSUPPORTED";
    case ALQ_PEER_FAILED: return "ALQ_PEER_FAILED";
    case ALQ_GROUP_POISONED: return "ALQ_GROUP_POISONED";
    case ALQ_RANK_MISMATCH: return "ALQ_RANK_MISMATCH";
    default: return "ALQ_UNKNOWN";
  }
}

int64_t alq_dtype_size(alq_dtype dtype) { return aliquot::dtype_size(dtype); }

const char* alq_dtype_name(alq_dtype dtype) {
  return aliquot::dtype_name(dtype);
}

#define ALQ_BUILD_FACTS \
  "{\"version\": \"" ALQ_STRING(ALQ_VERSION_MAJOR) "." ALQ_STRING(         \
      ALQ_VERSION_MINOR) "." ALQ_STRING(ALQ_VERSION_PATCH)                  \
  "\", \"abi\": \"" ALQ_STRING(ALQ_ABI_MAJOR) "." ALQ_STRING(ALQ_ABI_MINOR) \
  "\", \"compiler\": \"" __VERSION__ "\", \"optimized\": " ALQ_OPTIMIZED
#ifdef __OPTIMIZE__
#define ALQ_OPTIMIZED "true"
#else
#define ALQ_OPTIMIZED "false"
#endif

namespace {

// Its kernels are in.
bool has_cuda() { return aliquot::kernels::cuda_image().bytes > 0; }

}  // namespace

const char* alq_build_info(void) {
  static const char kCpu[] = ALQ_BUILD_FACTS
      ", \"devices\": [\"cpu\"], \"backends\": [\"mem\", \"nccl\"]}";
  static const char kCuda[] = ALQ_BUILD_FACTS
      ", \"devices\": [\"cpu\", \"cuda\"], \"backends\": [\"mem\", "
      "\"nccl\"]}";
  return has_cuda() ? kCuda : kCpu;
}

int32_t alq_has(const char* feature) {
  static constexpr const char* kFeatures[] = {
      "device.cpu",    "backend.mem",     "backend.nccl",   "strategy.single",
      "strategy.ddp",  "strategy.zero1",  "strategy.zero2", "strategy.fsdp",
      "strategy.hsdp", "optimizer.adamw", "optimizer.sgd"};
  if (feature == nullptr) return 0;
  if (std::strcmp(feature, "device.cuda") == 0) return has_cuda() ? 1 : 0;
  for (const char* known : kFeatures) {
    if (std::strcmp(known, feature) == 0) return 1;
  }
  return 0;
}
