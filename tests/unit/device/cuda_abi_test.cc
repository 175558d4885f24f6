// The prototypes and values in device/cuda/abi.h are those of cuda.h.  Built
// where a CUDA toolkit is.
#define BOOST_TEST_MODULE cuda_abi
#include <cuda.h>
#include <cudaTypedefs.h>

#include <boost/test/unit_test.hpp>
#include <type_traits>

#include "device/cuda/abi.h"

namespace ours = aliquot::cuda;

namespace {

// Enums are ints in the ABI, and cuuint64_t is a 64-bit word.
template <typename T>
struct Word {
  using type = T;
};
template <typename T>
requires std::is_enum_v<T>
struct Word<T> {
  static_assert(sizeof(T) == sizeof(int));
  using type = int;
};
template <typename T>
requires(std::is_integral_v<T> && sizeof(T) == 8) struct Word<T> {
  using type = uint64_t;
};
template <typename T>
struct Word<T*> {
  using type = typename Word<std::remove_const_t<T>>::type*;
};
template <typename R, typename... A>
struct Word<R (*)(A...)> {
  using type = typename Word<R>::type (*)(typename Word<A>::type...);
};
template <typename A, typename B>
constexpr bool kSame =
    std::is_same_v<typename Word<A>::type, typename Word<B>::type>;

#define ALQ_MEMBER(member, name, parameters) \
  ours::CUresult(*member) parameters = nullptr;
struct Ours {
  ALQ_CUDA_ENTRY_POINTS(ALQ_MEMBER)
};

}  // namespace

// The type that 12.0 gives under each name.
#define SAME(member, pfn) static_assert(kSame<decltype(Ours::member), pfn>)
SAME(init, PFN_cuInit_v2000);
SAME(driver_version, PFN_cuDriverGetVersion_v2020);
SAME(error_name, PFN_cuGetErrorName_v6000);
SAME(error_string, PFN_cuGetErrorString_v6000);
SAME(device_count, PFN_cuDeviceGetCount_v2000);
SAME(device_get, PFN_cuDeviceGet_v2000);
SAME(device_name, PFN_cuDeviceGetName_v2000);
SAME(device_attribute, PFN_cuDeviceGetAttribute_v2000);
SAME(device_memory, PFN_cuDeviceTotalMem_v3020);
SAME(device_pci, PFN_cuDeviceGetPCIBusId_v4010);
SAME(primary_retain, PFN_cuDevicePrimaryCtxRetain_v7000);
SAME(primary_release, PFN_cuDevicePrimaryCtxRelease_v11000);
SAME(context_current, PFN_cuCtxGetCurrent_v4000);
SAME(context_push, PFN_cuCtxPushCurrent_v4000);
SAME(context_pop, PFN_cuCtxPopCurrent_v4000);
SAME(context_set, PFN_cuCtxSetCurrent_v4000);
SAME(pointer_attribute, PFN_cuPointerGetAttribute_v4000);
SAME(stream_create, PFN_cuStreamCreate_v2000);
SAME(stream_destroy, PFN_cuStreamDestroy_v4000);
SAME(stream_context, PFN_cuStreamGetCtx_v9020);
SAME(stream_id, PFN_cuStreamGetId_v12000);
SAME(stream_wait_event, PFN_cuStreamWaitEvent_v3020);
SAME(stream_capture_info, PFN_cuStreamGetCaptureInfo_v11030);
SAME(exchange_capture_mode, PFN_cuThreadExchangeStreamCaptureMode_v10010);
SAME(event_create, PFN_cuEventCreate_v2000);
SAME(event_destroy, PFN_cuEventDestroy_v4000);
SAME(event_record, PFN_cuEventRecord_v2000);
SAME(event_query, PFN_cuEventQuery_v2000);
SAME(memory_alloc, PFN_cuMemAlloc_v3020);
SAME(memory_free, PFN_cuMemFree_v3020);
SAME(host_alloc, PFN_cuMemHostAlloc_v2020);
SAME(host_free, PFN_cuMemFreeHost_v2000);
SAME(memset_8, PFN_cuMemsetD8Async_v3020);
SAME(memory_copy, PFN_cuMemcpyAsync_v4000);
SAME(module_load, PFN_cuModuleLoadData_v2000);
SAME(module_unload, PFN_cuModuleUnload_v2000);
SAME(module_function, PFN_cuModuleGetFunction_v2000);
SAME(launch_kernel, PFN_cuLaunchKernel_v4000);
// Those of the stand-in alone.
static_assert(
    kSame<int (*)(ours::CUstream, int), PFN_cuStreamBeginCapture_v10010>);
static_assert(kSame<int (*)(ours::CUstream, ours::CUgraph*),
                    PFN_cuStreamEndCapture_v10000>);
static_assert(kSame<int (*)(ours::CUgraphExec*, ours::CUgraph, uint64_t),
                    PFN_cuGraphInstantiateWithFlags_v11040>);

BOOST_AUTO_TEST_CASE(values) {
  BOOST_TEST(ours::kInvalidValue == int{CUDA_ERROR_INVALID_VALUE});
  BOOST_TEST(ours::kOutOfMemory == int{CUDA_ERROR_OUT_OF_MEMORY});
  BOOST_TEST(ours::kNotInitialized == int{CUDA_ERROR_NOT_INITIALIZED});
  BOOST_TEST(ours::kDeinitialized == int{CUDA_ERROR_DEINITIALIZED});
  BOOST_TEST(ours::kStubLibrary == int{CUDA_ERROR_STUB_LIBRARY});
  BOOST_TEST(ours::kCallRequiresNewerDriver ==
             int{CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER});
  BOOST_TEST(ours::kDeviceUnavailable == int{CUDA_ERROR_DEVICE_UNAVAILABLE});
  BOOST_TEST(ours::kNoDevice == int{CUDA_ERROR_NO_DEVICE});
  BOOST_TEST(ours::kInvalidDevice == int{CUDA_ERROR_INVALID_DEVICE});
  BOOST_TEST(ours::kInvalidImage == int{CUDA_ERROR_INVALID_IMAGE});
  BOOST_TEST(ours::kInvalidContext == int{CUDA_ERROR_INVALID_CONTEXT});
  BOOST_TEST(ours::kNoBinaryForGpu == int{CUDA_ERROR_NO_BINARY_FOR_GPU});
  BOOST_TEST(ours::kEccUncorrectable == int{CUDA_ERROR_ECC_UNCORRECTABLE});
  BOOST_TEST(ours::kInvalidPtx == int{CUDA_ERROR_INVALID_PTX});
  BOOST_TEST(ours::kNvlinkUncorrectable ==
             int{CUDA_ERROR_NVLINK_UNCORRECTABLE});
  BOOST_TEST(ours::kJitCompilerNotFound ==
             int{CUDA_ERROR_JIT_COMPILER_NOT_FOUND});
  BOOST_TEST(ours::kUnsupportedPtxVersion ==
             int{CUDA_ERROR_UNSUPPORTED_PTX_VERSION});
  BOOST_TEST(ours::kJitCompilationDisabled ==
             int{CUDA_ERROR_JIT_COMPILATION_DISABLED});
  BOOST_TEST(ours::kContained == int{CUDA_ERROR_CONTAINED});
  BOOST_TEST(ours::kInvalidHandle == int{CUDA_ERROR_INVALID_HANDLE});
  BOOST_TEST(ours::kNotFound == int{CUDA_ERROR_NOT_FOUND});
  BOOST_TEST(ours::kNotReady == int{CUDA_ERROR_NOT_READY});
  BOOST_TEST(ours::kIllegalAddress == int{CUDA_ERROR_ILLEGAL_ADDRESS});
  BOOST_TEST(ours::kLaunchOutOfResources ==
             int{CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES});
  BOOST_TEST(ours::kLaunchTimeout == int{CUDA_ERROR_LAUNCH_TIMEOUT});
  BOOST_TEST(ours::kContextIsDestroyed == int{CUDA_ERROR_CONTEXT_IS_DESTROYED});
  BOOST_TEST(ours::kAssert == int{CUDA_ERROR_ASSERT});
  BOOST_TEST(ours::kHardwareStackError == int{CUDA_ERROR_HARDWARE_STACK_ERROR});
  BOOST_TEST(ours::kIllegalInstruction == int{CUDA_ERROR_ILLEGAL_INSTRUCTION});
  BOOST_TEST(ours::kMisalignedAddress == int{CUDA_ERROR_MISALIGNED_ADDRESS});
  BOOST_TEST(ours::kInvalidAddressSpace ==
             int{CUDA_ERROR_INVALID_ADDRESS_SPACE});
  BOOST_TEST(ours::kInvalidPc == int{CUDA_ERROR_INVALID_PC});
  BOOST_TEST(ours::kLaunchFailed == int{CUDA_ERROR_LAUNCH_FAILED});
  BOOST_TEST(ours::kNotSupported == int{CUDA_ERROR_NOT_SUPPORTED});
  BOOST_TEST(ours::kSystemNotReady == int{CUDA_ERROR_SYSTEM_NOT_READY});
  BOOST_TEST(ours::kSystemDriverMismatch ==
             int{CUDA_ERROR_SYSTEM_DRIVER_MISMATCH});
  BOOST_TEST(ours::kCompatNotSupported ==
             int{CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE});
  BOOST_TEST(ours::kCaptureUnsupported ==
             int{CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED});
  BOOST_TEST(ours::kCaptureInvalidated ==
             int{CUDA_ERROR_STREAM_CAPTURE_INVALIDATED});
  BOOST_TEST(ours::kCaptureMerge == int{CUDA_ERROR_STREAM_CAPTURE_MERGE});
  BOOST_TEST(ours::kCaptureUnmatched ==
             int{CUDA_ERROR_STREAM_CAPTURE_UNMATCHED});
  BOOST_TEST(ours::kCaptureUnjoined == int{CUDA_ERROR_STREAM_CAPTURE_UNJOINED});
  BOOST_TEST(ours::kCaptureIsolation ==
             int{CUDA_ERROR_STREAM_CAPTURE_ISOLATION});
  BOOST_TEST(ours::kCaptureImplicit == int{CUDA_ERROR_STREAM_CAPTURE_IMPLICIT});
  BOOST_TEST(ours::kCapturedEvent == int{CUDA_ERROR_CAPTURED_EVENT});
  BOOST_TEST(ours::kCaptureWrongThread ==
             int{CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD});
  BOOST_TEST(ours::kUnknown == int{CUDA_ERROR_UNKNOWN});
  BOOST_TEST(ours::kStreamNonBlocking == unsigned{CU_STREAM_NON_BLOCKING});
  BOOST_TEST(ours::kEventDisableTiming == unsigned{CU_EVENT_DISABLE_TIMING});
  BOOST_TEST(ours::kHostPortable == unsigned{CU_MEMHOSTALLOC_PORTABLE});
  BOOST_TEST(ours::kHostMapped == unsigned{CU_MEMHOSTALLOC_DEVICEMAP});
  BOOST_TEST(ours::kAttributeMultiprocessors ==
             int{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT});
  BOOST_TEST(ours::kAttributeUnifiedAddressing ==
             int{CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING});
  BOOST_TEST(ours::kAttributeCapabilityMajor ==
             int{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR});
  BOOST_TEST(ours::kAttributeCapabilityMinor ==
             int{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR});
  BOOST_TEST(ours::kPointerMemoryType == int{CU_POINTER_ATTRIBUTE_MEMORY_TYPE});
  BOOST_TEST(ours::kCaptureModeRelaxed == int{CU_STREAM_CAPTURE_MODE_RELAXED});
  BOOST_TEST(ours::kCaptureStatusActive ==
             int{CU_STREAM_CAPTURE_STATUS_ACTIVE});
  BOOST_TEST((ours::legacy_stream() == CU_STREAM_LEGACY));
  BOOST_TEST((ours::per_thread_stream() == CU_STREAM_PER_THREAD));
}
