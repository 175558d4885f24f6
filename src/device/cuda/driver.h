// The CUDA driver: loaded when a CUDA device is opened, never before.
#pragma once

#include <memory>
#include <string>

#include "base/context.h"
#include "base/status.h"
#include "device/cuda/abi.h"

namespace aliquot::cuda {

#define ALQ_CUDA_MEMBER(member, name, parameters) \
  CUresult(*member) parameters = nullptr;

struct Driver {
  ALQ_CUDA_ENTRY_POINTS(ALQ_CUDA_MEMBER)
  int version = 0;   // 13000 is 13.0
  std::string path;  // of the library

  // Loads and initialises it.  UNAVAILABLE says what was tried and where.
  static Result<std::shared_ptr<const Driver>> load(Context& context);

  // "CUDA_ERROR_OUT_OF_MEMORY"
  std::string name(CUresult result) const;
  // What went wrong, in a call, on a device (-1: none yet), and what to do.
  Status error(CUresult result, const char* call, int32_t device) const;
};

#undef ALQ_CUDA_MEMBER

// After these every later call of the context fails too.
bool is_sticky(CUresult result);

// "13.0"
std::string version_text(int version);

}  // namespace aliquot::cuda
