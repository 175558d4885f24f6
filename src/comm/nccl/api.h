// NCCL by dlopen: the functions that are used and what the version can do.
//
// A copy that the process has already is taken first (two NCCLs in one process
// are a common failure), then the places the device knows, then the system's.
#pragma once

#include <string>
#include <vector>

#include "base/dynlib.h"
#include "comm/nccl/abi.h"

namespace aliquot::nccl {

// What a version has, as bits.  Every one from 2.19 on has split, non-blocking
// communicators and registration.
enum Capability : uint32_t {
  kCanSplit = 1u << 0,
  kNonBlocking = 1u << 1,
  kRegisters = 1u << 2,
  kLaunchOrder = 1u << 3,   // NCCL_LAUNCH_ORDER_IMPLICIT, 2.26
  kWindows = 1u << 4,       // 2.27
  kShrinks = 1u << 5,       // 2.27
  kRevokes = 1u << 6,       // 2.29: 2.28.7 has it, its neighbours do not
  kSharesDevice = 1u << 7,  // several ranks on one device, 2.30.3
};
uint32_t capabilities(int32_t version);
// "split, nonblocking, register"
std::string capability_text(uint32_t bits);
// "2.30.7"
std::string version_text(int32_t version);

struct Api {
  int32_t version = 0;
  uint32_t can = 0;

  NcclResult (*get_version)(int*);
  NcclResult (*get_unique_id)(UniqueId*);
  NcclResult (*init_rank)(CommHandle*, int, UniqueId, int, Config*);
  NcclResult (*split)(CommHandle, int, int, CommHandle*, Config*);
  NcclResult (*finalize)(CommHandle);
  NcclResult (*destroy)(CommHandle);
  NcclResult (*abort)(CommHandle);
  NcclResult (*async_error)(CommHandle, NcclResult*);
  NcclResult (*user_rank)(CommHandle, int*);
  const char* (*error_string)(NcclResult);
  const char* (*last_error)(CommHandle);
  NcclResult (*group_start)();
  NcclResult (*group_end)();
  NcclResult (*premul_sum)(NcclOp*, void*, NcclType, int32_t, CommHandle);
  NcclResult (*op_destroy)(NcclOp, CommHandle);
  NcclResult (*all_reduce)(const void*, void*, size_t, NcclType, NcclOp,
                           CommHandle, RawStream);
  NcclResult (*reduce)(const void*, void*, size_t, NcclType, NcclOp, int,
                       CommHandle, RawStream);
  NcclResult (*broadcast)(const void*, void*, size_t, NcclType, int, CommHandle,
                          RawStream);
  NcclResult (*reduce_scatter)(const void*, void*, size_t, NcclType, NcclOp,
                               CommHandle, RawStream);
  NcclResult (*all_gather)(const void*, void*, size_t, NcclType, CommHandle,
                           RawStream);
  NcclResult (*send)(const void*, size_t, NcclType, int, CommHandle, RawStream);
  NcclResult (*recv)(void*, size_t, NcclType, int, CommHandle, RawStream);

  // "ncclAllReduce: remote process exited or there was a network error; ..."
  std::string failure(const char* what, NcclResult result,
                      CommHandle comm) const;
};

// Loads and checks it; records path, version and failures in the set.  path:
// this file instead of a search, unless empty.  UNAVAILABLE says what was
// tried, or what the version lacks.
Result<Api> load(LibrarySet& libraries, std::vector<std::string> dirs,
                 std::string path = "");

}  // namespace aliquot::nccl
