// Devices, contexts and the table of entry points.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <utility>

#include "tests/doubles/cuda/stream.h"

using namespace aliquot::cuda_double;

namespace {

ContextImpl* of_device(CUdevice device) {
  auto& contexts = state().contexts;
  if (device < 0 || static_cast<size_t>(device) >= contexts.size()) {
    return nullptr;
  }
  return contexts[static_cast<size_t>(device)];
}

struct Named {
  CUresult result;
  const char* name;
};

constexpr Named kNames[] = {
    {kSuccess, "CUDA_SUCCESS"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED"},
    {kNoDevice, "CUDA_ERROR_NO_DEVICE"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
    {kInvalidImage, "CUDA_ERROR_INVALID_IMAGE"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
    {kNoBinaryForGpu, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
    {kEccUncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
    {kNotFound, "CUDA_ERROR_NOT_FOUND"},
    {kNotReady, "CUDA_ERROR_NOT_READY"},
    {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED"},
    {kNotSupported, "CUDA_ERROR_NOT_SUPPORTED"},
    {kSystemDriverMismatch, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
    {kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {kCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
    {kCaptureMerge, "CUDA_ERROR_STREAM_CAPTURE_MERGE"},
    {kCaptureUnmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
    {kCaptureUnjoined, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
    {kCaptureIsolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
    {kCapturedEvent, "CUDA_ERROR_CAPTURED_EVENT"},
    {kCaptureWrongThread, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
    {kUnknown, "CUDA_ERROR_UNKNOWN"}};

}  // namespace

DOUBLE_API CUresult cuGetErrorName(CUresult result, const char** name) {
  for (const Named& known : kNames) {
    if (known.result != result) continue;
    *name = known.name;
    return kSuccess;
  }
  *name = nullptr;
  return kInvalidValue;
}

DOUBLE_API CUresult cuGetErrorString(CUresult result, const char** text) {
  return cuGetErrorName(result, text);
}

DOUBLE_API CUresult cuInit(unsigned flags) {
  if (flags != 0) return kInvalidValue;
  if (CUresult failed = injected("cuInit", nullptr)) return failed;
  Lock lock(state().mutex);
  if (state().contexts.empty()) return kNoDevice;
  state().initialized = true;
  return kSuccess;
}

DOUBLE_API CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return injected("cuDriverGetVersion", nullptr);
}

DOUBLE_API CUresult cuDeviceGetCount(int* n) {
  if (CUresult failed = injected("cuDeviceGetCount", nullptr)) return failed;
  if (!state().initialized) return kNotInitialized;
  *n = static_cast<int>(state().contexts.size());
  return kSuccess;
}

DOUBLE_API CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (CUresult failed = injected("cuDeviceGet", nullptr)) return failed;
  if (!state().initialized) return kNotInitialized;
  if (of_device(ordinal) == nullptr) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

DOUBLE_API CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
  if (of_device(device) == nullptr) return kInvalidDevice;
  std::snprintf(name, static_cast<size_t>(bytes), "double (host memory)");
  return kSuccess;
}

DOUBLE_API CUresult cuDeviceGetPCIBusId(char* id, int bytes, CUdevice device) {
  if (of_device(device) == nullptr) return kInvalidDevice;
  std::snprintf(id, static_cast<size_t>(bytes), "0000:%02x:00.0", device);
  return kSuccess;
}

DOUBLE_API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  if (of_device(device) == nullptr) return kInvalidDevice;
  *bytes = size_t{16} << 30;
  return kSuccess;
}

DOUBLE_API CUresult cuDeviceGetAttribute(int* value, int attribute,
                                         CUdevice device) {
  if (CUresult failed = injected("cuDeviceGetAttribute", nullptr)) {
    return failed;
  }
  if (of_device(device) == nullptr) return kInvalidDevice;
  switch (attribute) {
    // Few, so that grids are small and kernels loop.
    case kAttributeMultiprocessors: *value = 3; return kSuccess;
    case kAttributeUnifiedAddressing: *value = 1; return kSuccess;
    case kAttributeCapabilityMajor: *value = 9; return kSuccess;
    case kAttributeCapabilityMinor: *value = 0; return kSuccess;
    default: *value = 0; return kInvalidValue;
  }
}

DOUBLE_API CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
  Lock lock(state().mutex);
  if (!state().initialized) return kNotInitialized;
  ContextImpl* context = of_device(device);
  if (context == nullptr) return kInvalidDevice;
  if (CUresult failed = injected("cuDevicePrimaryCtxRetain", context)) {
    return failed;
  }
  ++context->retained;
  *out = handle(context);
  return kSuccess;
}

DOUBLE_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  Lock lock(state().mutex);
  ContextImpl* context = of_device(device);
  if (context == nullptr) return kInvalidDevice;
  if (context->retained == 0) {
    violation("a primary context released more often than retained");
    return kInvalidContext;
  }
  // A context that nobody holds is destroyed, and its error with it.
  if (--context->retained == 0) {
    context->sticky = kSuccess;
    context->streams = context->events_since = 0;
    context->engine_streams = -1;
  }
  return kSuccess;
}

DOUBLE_API CUresult cuCtxGetCurrent(CUcontext* out) {
  if (CUresult failed = injected("cuCtxGetCurrent", nullptr)) return failed;
  *out = handle(current_context());
  return kSuccess;
}

DOUBLE_API CUresult cuCtxPushCurrent_v2(CUcontext context) {
  if (CUresult failed = injected("cuCtxPushCurrent", nullptr)) return failed;
  Lock lock(state().mutex);
  if (context == nullptr || impl(context)->retained == 0) {
    return kInvalidContext;
  }
  push_context(impl(context));
  return kSuccess;
}

DOUBLE_API CUresult cuCtxPopCurrent_v2(CUcontext* out) {
  ContextImpl* top = pop_context();
  if (out != nullptr) *out = handle(top);
  return top == nullptr ? kInvalidContext : kSuccess;
}

DOUBLE_API CUresult cuCtxSetCurrent(CUcontext context) {
  if (CUresult failed = injected("cuCtxSetCurrent", nullptr)) return failed;
  Lock lock(state().mutex);
  if (context != nullptr && impl(context)->retained == 0) {
    return kInvalidContext;
  }
  pop_context();
  if (context != nullptr) push_context(impl(context));
  return kSuccess;
}

DOUBLE_API CUresult cuCtxGetDevice(CUdevice* device) {
  if (current_context() == nullptr) return kInvalidContext;
  *device = current_context()->device;
  return kSuccess;
}

// The newest variant that 12.0 has: "_v2" where there is one.
DOUBLE_API CUresult cuGetProcAddress(const char* name, void** address,
                                     int version, uint64_t flags) {
  *address = nullptr;
  if (CUresult failed = injected("cuGetProcAddress", nullptr)) return failed;
  if (flags != 0 || version != kApiVersion) {
    violation("cuGetProcAddress(%s) of version %d, flags %d: %d is known here",
              name, version, static_cast<int>(flags), kApiVersion);
    return kNotFound;
  }
  std::string lookup = std::string("lookup ") + name;
  if (CUresult failed = injected(lookup.c_str(), nullptr)) return failed;
  Dl_info self = {};
  dladdr(reinterpret_cast<void*>(&double_violation), &self);
  void* library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return kNotFound;
  *address = dlsym(library, (std::string(name) + "_v2").c_str());
  if (*address == nullptr) *address = dlsym(library, name);
  dlclose(library);
  return *address == nullptr ? kNotFound : kSuccess;
}

// Of 12.0: says how the search went too.
DOUBLE_API CUresult cuGetProcAddress_v2(const char* name, void** address,
                                        int version, uint64_t flags,
                                        int* found) {
  CUresult result = cuGetProcAddress(name, address, version, flags);
  if (found != nullptr) *found = *address == nullptr ? 1 : 0;
  return result;
}
