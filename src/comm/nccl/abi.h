// The part of NCCL's ABI that is used, as of 2.19, in own words: the library is
// loaded at run time and its header is not needed to build.  Values and layouts
// are those that nccl.h documents; they do not change within major version 2.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

namespace aliquot::nccl {

using CommHandle = struct NcclCommOpaque*;
using RawStream = void*;  // CUstream

enum NcclResult : int32_t {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum NcclType : int32_t {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};

enum NcclOp : int32_t {
  kSum = 0,
  kProd = 1,
  kMax = 2,
  kMin = 3,
  kAvg = 4,
};

constexpr int32_t kScalarOnHost = 1;  // ncclScalarHostImmediate
constexpr int32_t kNoColor = -1;
constexpr int32_t kUndefined = INT_MIN;
constexpr uint32_t kConfigMagic = 0xcafebeef;
constexpr int32_t kOldest = 21900;

struct UniqueId {
  char bytes[128];
};

// ncclConfig_t as 2.19 has it.  A newer library reads `size` bytes and takes
// its defaults for the rest.  What is padding in 2.19 is a field from 2.26 on,
// so it says "undefined" as well.
struct Config {
  size_t size = sizeof(Config);
  uint32_t magic = kConfigMagic;
  uint32_t version = kOldest;
  int32_t blocking = kUndefined;
  int32_t cga_cluster_size = kUndefined;
  int32_t min_ctas = kUndefined;
  int32_t max_ctas = kUndefined;
  const char* net_name = nullptr;
  int32_t split_share = kUndefined;
  int32_t later = kUndefined;
};

static_assert(sizeof(UniqueId) == 128 && alignof(UniqueId) == 1);
static_assert(sizeof(NcclResult) == 4 && sizeof(NcclType) == 4 &&
              sizeof(NcclOp) == 4);
static_assert(offsetof(Config, magic) == 8 && offsetof(Config, version) == 12 &&
              offsetof(Config, blocking) == 16 &&
              offsetof(Config, max_ctas) == 28 &&
              offsetof(Config, net_name) == 32 &&
              offsetof(Config, split_share) == 40 && sizeof(Config) == 48);

}  // namespace aliquot::nccl
