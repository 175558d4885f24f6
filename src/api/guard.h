// The exception barrier, the error struct and the struct growth rule: what
// every function of the ABI does before and after its work.
#pragma once

#include <cstring>
#include <new>

#include "api/handle.h"
#include "base/status.h"

namespace aliquot::api {

// Fills err (if any) and returns the code.
alq_status report(const Status& status, alq_error* err);

// Runs body() -> Status; nothing thrown leaves.
template <typename Body>
alq_status guard(alq_error* err, Body body) noexcept {
  CallPins::Scope pins;
  try {
    Status status = body();
    return status.ok() ? ALQ_OK : report(status, err);
  } catch (const std::bad_alloc&) {
    if (err != nullptr) {
      err->code = ALQ_RESOURCE_EXHAUSTED;
      err->domain = err->native_code = 0;
      err->rank = -1;
      std::strcpy(err->message, "out of host memory; nothing was changed");
    }
    return ALQ_RESOURCE_EXHAUSTED;
  } catch (...) {
    if (err != nullptr) {
      err->code = ALQ_INTERNAL;
      err->domain = err->native_code = 0;
      err->rank = -1;
      std::strcpy(err->message,
                  "an exception reached the C ABI; please report it");
    }
    return ALQ_INTERNAL;
  }
}

Status check_struct(const char* name, uint32_t caller_size, uint32_t own_size,
                    const void* caller);

// A caller's struct as this library knows it: what it lacks is zero, and what
// this library does not know must be.
template <typename T>
Status read_struct(const char* name, const T* in, T* out) {
  if (in == nullptr) {
    return make_error(ALQ_INVALID_ARGUMENT, "{} is null", name);
  }
  ALQ_TRY(check_struct(name, in->struct_size, sizeof(T), in));
  std::memset(static_cast<void*>(out), 0, sizeof(T));
  // Whole 8-byte words: half a pointer is no pointer.
  uint32_t size = in->struct_size & ~7u;
  std::memcpy(static_cast<void*>(out), in, size < sizeof(T) ? size : sizeof(T));
  return {};
}

// Writes as much of `full` as the caller has room for.
template <typename T>
void write_struct(const T& full, T* out) {
  uint32_t size =
      out->struct_size < sizeof(T) ? out->struct_size : uint32_t{sizeof(T)};
  std::memcpy(static_cast<void*>(out), &full, size);
  out->struct_size = size;
}

Status check_out(const void* out, const char* name);

// The (buf, cap, need) convention.
Status write_text(const std::string& text, char* buf, size_t cap, size_t* need);

}  // namespace aliquot::api
