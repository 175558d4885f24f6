// The part of the CUDA driver API that is used here, by its documented ABI: a
// build needs no CUDA headers.  tests/unit/device/cuda_abi_test.cc compares it
// with cuda.h where there is one.  Version 12.0 of every entry point.
#pragma once

#include <cstddef>
#include <cstdint>

// As cuda.h names them, so that both may meet in one program.
struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;
struct CUgraph_st;
struct CUgraphNode_st;
struct CUgraphExec_st;

namespace aliquot::cuda {

using CUresult = int;  // an enum of int size
using CUdevice = int;
using CUdeviceptr = uint64_t;
using CUcontext = ::CUctx_st*;
using CUstream = ::CUstream_st*;
using CUevent = ::CUevent_st*;
using CUmodule = ::CUmod_st*;
using CUfunction = ::CUfunc_st*;
using CUgraph = ::CUgraph_st*;
using CUgraphNode = ::CUgraphNode_st*;
using CUgraphExec = ::CUgraphExec_st*;

// The version that entry points are asked for.
constexpr int kApiVersion = 12000;

// Results that something here depends on.
constexpr CUresult kSuccess = 0;
constexpr CUresult kInvalidValue = 1;
constexpr CUresult kOutOfMemory = 2;
constexpr CUresult kNotInitialized = 3;
constexpr CUresult kDeinitialized = 4;
constexpr CUresult kStubLibrary = 34;
constexpr CUresult kCallRequiresNewerDriver = 36;
constexpr CUresult kDeviceUnavailable = 46;
constexpr CUresult kNoDevice = 100;
constexpr CUresult kInvalidDevice = 101;
constexpr CUresult kInvalidImage = 200;
constexpr CUresult kInvalidContext = 201;
constexpr CUresult kNoBinaryForGpu = 209;
constexpr CUresult kEccUncorrectable = 214;
constexpr CUresult kInvalidPtx = 218;
constexpr CUresult kNvlinkUncorrectable = 220;
constexpr CUresult kJitCompilerNotFound = 221;
constexpr CUresult kUnsupportedPtxVersion = 222;
constexpr CUresult kJitCompilationDisabled = 223;
constexpr CUresult kContained = 226;
constexpr CUresult kInvalidHandle = 400;
constexpr CUresult kNotFound = 500;
constexpr CUresult kNotReady = 600;
constexpr CUresult kIllegalAddress = 700;
constexpr CUresult kLaunchOutOfResources = 701;
constexpr CUresult kLaunchTimeout = 702;
constexpr CUresult kContextIsDestroyed = 709;
constexpr CUresult kAssert = 710;
constexpr CUresult kHardwareStackError = 714;
constexpr CUresult kIllegalInstruction = 715;
constexpr CUresult kMisalignedAddress = 716;
constexpr CUresult kInvalidAddressSpace = 717;
constexpr CUresult kInvalidPc = 718;
constexpr CUresult kLaunchFailed = 719;
constexpr CUresult kTensorMemoryLeak = 721;
constexpr CUresult kNotSupported = 801;
constexpr CUresult kSystemNotReady = 802;
constexpr CUresult kSystemDriverMismatch = 803;
constexpr CUresult kCompatNotSupported = 804;
constexpr CUresult kCaptureUnsupported = 900;
constexpr CUresult kCaptureInvalidated = 901;
constexpr CUresult kCaptureMerge = 902;
constexpr CUresult kCaptureUnmatched = 903;
constexpr CUresult kCaptureUnjoined = 904;
constexpr CUresult kCaptureIsolation = 905;
constexpr CUresult kCaptureImplicit = 906;
constexpr CUresult kCapturedEvent = 907;
constexpr CUresult kCaptureWrongThread = 908;
constexpr CUresult kUnknown = 999;

// Flags and attributes.
constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kHostPortable = 1, kHostMapped = 2;
constexpr int kAttributeMultiprocessors = 16;
constexpr int kAttributeUnifiedAddressing = 41;
constexpr int kAttributeCapabilityMajor = 75;
constexpr int kAttributeCapabilityMinor = 76;
constexpr int kPointerMemoryType = 2;
constexpr int kCaptureModeGlobal = 0;
constexpr int kCaptureModeThreadLocal = 1;
constexpr int kCaptureModeRelaxed = 2;
constexpr int kCaptureStatusNone = 0;
constexpr int kCaptureStatusActive = 1;
constexpr int kCaptureStatusInvalidated = 2;

inline CUstream legacy_stream() { return reinterpret_cast<CUstream>(1); }
inline CUstream per_thread_stream() { return reinterpret_cast<CUstream>(2); }

// X(member, name for cuGetProcAddress, parameters)
#define ALQ_CUDA_ENTRY_POINTS(X)                                               \
  X(init, cuInit, (unsigned flags))                                            \
  X(driver_version, cuDriverGetVersion, (int* version))                        \
  X(error_name, cuGetErrorName, (CUresult result, const char** name))          \
  X(error_string, cuGetErrorString, (CUresult result, const char** text))      \
  X(device_count, cuDeviceGetCount, (int* count))                              \
  X(device_get, cuDeviceGet, (CUdevice * device, int ordinal))                 \
  X(device_name, cuDeviceGetName, (char* name, int bytes, CUdevice device))    \
  X(device_attribute, cuDeviceGetAttribute,                                    \
    (int* value, int attribute, CUdevice device))                              \
  X(device_memory, cuDeviceTotalMem, (size_t * bytes, CUdevice device))        \
  X(device_pci, cuDeviceGetPCIBusId, (char* id, int bytes, CUdevice device))   \
  X(primary_retain, cuDevicePrimaryCtxRetain,                                  \
    (CUcontext * context, CUdevice device))                                    \
  X(primary_release, cuDevicePrimaryCtxRelease, (CUdevice device))             \
  X(context_current, cuCtxGetCurrent, (CUcontext * context))                   \
  X(context_push, cuCtxPushCurrent, (CUcontext context))                       \
  X(context_pop, cuCtxPopCurrent, (CUcontext * context))                       \
  X(context_set, cuCtxSetCurrent, (CUcontext context))                         \
  X(pointer_attribute, cuPointerGetAttribute,                                  \
    (void* value, int attribute, CUdeviceptr pointer))                         \
  X(stream_create, cuStreamCreate, (CUstream * stream, unsigned flags))        \
  X(stream_destroy, cuStreamDestroy, (CUstream stream))                        \
  X(stream_context, cuStreamGetCtx, (CUstream stream, CUcontext * context))    \
  X(stream_id, cuStreamGetId, (CUstream stream, unsigned long long* id))       \
  X(stream_wait_event, cuStreamWaitEvent,                                      \
    (CUstream stream, CUevent event, unsigned flags))                          \
  X(stream_capture_info, cuStreamGetCaptureInfo,                               \
    (CUstream stream, int* status, uint64_t* id, CUgraph* graph,               \
     const CUgraphNode** dependencies, size_t* count))                         \
  X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (int* mode))     \
  X(event_create, cuEventCreate, (CUevent * event, unsigned flags))            \
  X(event_destroy, cuEventDestroy, (CUevent event))                            \
  X(event_record, cuEventRecord, (CUevent event, CUstream stream))             \
  X(event_query, cuEventQuery, (CUevent event))                                \
  X(memory_alloc, cuMemAlloc, (CUdeviceptr * pointer, size_t bytes))           \
  X(memory_free, cuMemFree, (CUdeviceptr pointer))                             \
  X(host_alloc, cuMemHostAlloc,                                                \
    (void** pointer, size_t bytes, unsigned flags))                            \
  X(host_free, cuMemFreeHost, (void* pointer))                                 \
  X(memset_8, cuMemsetD8Async,                                                 \
    (CUdeviceptr pointer, unsigned char value, size_t bytes, CUstream stream)) \
  X(memory_copy, cuMemcpyAsync,                                                \
    (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))         \
  X(module_load, cuModuleLoadData, (CUmodule * module, const void* image))     \
  X(module_unload, cuModuleUnload, (CUmodule module))                          \
  X(module_function, cuModuleGetFunction,                                      \
    (CUfunction * function, CUmodule module, const char* name))                \
  X(launch_kernel, cuLaunchKernel,                                             \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,   \
     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,    \
     CUstream stream, void** parameters, void** extra))

}  // namespace aliquot::cuda
