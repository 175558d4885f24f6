#include "device/cuda/driver.h"

namespace aliquot::cuda {
namespace {

constexpr const char* kLibrary = "cuda";

using GetProcAddress = CUresult (*)(const char* name, void** address,
                                    int version, uint64_t flags);

Status unavailable(const std::string& why) {
  return make_error(ALQ_UNAVAILABLE,
                    "no CUDA device: {}; install NVIDIA's driver (580 or later "
                    "for kernels built by CUDA 13), name its library with the "
                    "hint cuda_library=PATH, or open with device_type CPU",
                    why);
}

// Every entry point, or the name of the first that is missing.
Status find_all(GetProcAddress get, Driver* driver) {
#define ALQ_CUDA_FIND(member, name, parameters)                           \
  {                                                                       \
    void* address = nullptr;                                              \
    if (get(#name, &address, kApiVersion, 0) != kSuccess ||               \
        address == nullptr) {                                             \
      return unavailable(fmt::format("{} has no " #name                   \
                                     " of CUDA 12.0; update the driver",  \
                                     driver->path));                      \
    }                                                                     \
    driver->member = reinterpret_cast<decltype(driver->member)>(address); \
  }
  ALQ_CUDA_ENTRY_POINTS(ALQ_CUDA_FIND)
#undef ALQ_CUDA_FIND
  return {};
}

std::string path_of(const LibrarySet& libraries) {
  for (const LibraryRecord& record : libraries.records()) {
    if (record.name == kLibrary) return record.path;
  }
  return kLibrary;
}

alq_status code_of(CUresult result) {
  switch (result) {
    case kInvalidValue:
    case kInvalidDevice:
    case kInvalidContext:
    case kInvalidHandle: return ALQ_INVALID_ARGUMENT;
    case kOutOfMemory:
    case kLaunchOutOfResources: return ALQ_RESOURCE_EXHAUSTED;
    case kEccUncorrectable: return ALQ_DATA_LOSS;
    case kNotInitialized:
    case kDeinitialized:
    case kStubLibrary:
    case kCallRequiresNewerDriver:
    case kDeviceUnavailable:
    case kNoDevice:
    case kInvalidImage:
    case kNoBinaryForGpu:
    case kInvalidPtx:
    case kJitCompilerNotFound:
    case kUnsupportedPtxVersion:
    case kJitCompilationDisabled:
    case kSystemNotReady:
    case kSystemDriverMismatch:
    case kCompatNotSupported: return ALQ_UNAVAILABLE;
    case kNotFound: return ALQ_NOT_FOUND;
    case kNotSupported: return ALQ_UNSUPPORTED;
    case kNotReady:
    case kCaptureUnsupported:
    case kCaptureInvalidated:
    case kCaptureMerge:
    case kCaptureUnmatched:
    case kCaptureUnjoined:
    case kCaptureIsolation:
    case kCaptureImplicit:
    case kCapturedEvent:
    case kCaptureWrongThread: return ALQ_FAILED_PRECONDITION;
    default: return ALQ_INTERNAL;
  }
}

const char* advice(CUresult result) {
  switch (result) {
    case kOutOfMemory:
      return "free memory of the device, or shard more; nothing was changed";
    case kNoDevice:
      return "the driver shows no device: look at nvidia-smi and "
             "CUDA_VISIBLE_DEVICES";
    case kInvalidContext:
    case kInvalidHandle:
      return "pass a live stream of this device's primary context";
    case kInvalidImage:
    case kNoBinaryForGpu:
    case kInvalidPtx:
    case kUnsupportedPtxVersion:
      return "the kernels are not for this card or driver: update the driver, "
             "or build the library with this card in ALQ_CUDA_ARCHS";
    case kSystemNotReady:
    case kSystemDriverMismatch:
      return "the driver's parts do not fit together: restart the machine "
             "after a driver update";
    case kCaptureUnsupported:
    case kCaptureInvalidated:
    case kCaptureImplicit:
      return "a stream is being captured: do this before the capture";
    case kCaptureIsolation:
    case kCapturedEvent:
      return "events do not reach into or out of a capture: run one step "
             "before it and synchronise";
    case kCaptureMerge:
      return "two captures that are independent were given to one call";
    case kEccUncorrectable:
      return "the card's memory is damaged: look at nvidia-smi -q";
    case kIllegalAddress:
    case kMisalignedAddress:
      return "a kernel touched memory that is freed, or not the device's: "
             "look at the buffers given to this library, with "
             "compute-sanitizer";
    default: return "look the code up in NVIDIA's driver API";
  }
}

}  // namespace

bool is_sticky(CUresult result) {
  switch (result) {
    case kEccUncorrectable:
    case kNvlinkUncorrectable:
    case kContained:
    case kIllegalAddress:
    case kLaunchTimeout:
    case kContextIsDestroyed:
    case kAssert:
    case kHardwareStackError:
    case kIllegalInstruction:
    case kMisalignedAddress:
    case kInvalidAddressSpace:
    case kInvalidPc:
    case kLaunchFailed:
    case kTensorMemoryLeak: return true;
    default: return false;
  }
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string Driver::name(CUresult result) const {
  const char* text = nullptr;
  if (error_name != nullptr && error_name(result, &text) == kSuccess &&
      text != nullptr) {
    return text;
  }
  return fmt::format("CUresult {}", result);
}

Status Driver::error(CUresult result, const char* call, int32_t device) const {
  if (result == kSuccess) return {};
  std::string where =
      device < 0 ? std::string("CUDA") : fmt::format("CUDA device {}", device);
  return make_error(code_of(result), "{}: {} returned {} ({}); {}{}", where,
                    call, name(result), result, advice(result),
                    is_sticky(result) ? "; this process can not use the device "
                                        "any more: end it"
                                      : "")
      .with_native(ALQ_DOMAIN_CUDA, result);
}

Result<std::shared_ptr<const Driver>> Driver::load(Context& context) {
  LibrarySpec spec;
  spec.name = kLibrary;
  spec.sonames = {"libcuda.so.1"};
  if (auto it = context.library_paths.find(kLibrary);
      it != context.library_paths.end()) {
    spec.override_path = it->second;
  }
  Result<void*> library = context.libraries.open(spec);
  if (!library.ok()) return unavailable(library.status().message());
  Result<void*> get = context.libraries.symbol(kLibrary, "cuGetProcAddress");
  if (!get.ok()) return unavailable(get.status().message());

  auto driver = std::make_shared<Driver>();
  driver->path = path_of(context.libraries);
  ALQ_TRY(find_all(reinterpret_cast<GetProcAddress>(*get), driver.get()));
  const char* call = "cuDriverGetVersion";
  CUresult result = driver->driver_version(&driver->version);
  if (result == kSuccess) {
    context.libraries.set_version(kLibrary, version_text(driver->version));
    call = "cuInit";
    result = driver->init(0);
  }
  if (result != kSuccess) {
    return unavailable(fmt::format("{}: {}", driver->path,
                                   driver->error(result, call, -1).message()));
  }
  return std::shared_ptr<const Driver>(std::move(driver));
}

}  // namespace aliquot::cuda
