#include "api/guard.h"

#include "base/text.h"

namespace aliquot::api {

namespace {
constexpr uint32_t kHead = 8;  // struct_size and flags
constexpr uint32_t kMaxStruct = 1 << 16;
}  // namespace

alq_status report(const Status& status, alq_error* err) {
  if (err == nullptr) return status.code();
  err->struct_size = sizeof(alq_error);
  err->code = status.code();
  err->domain = status.domain();
  err->native_code = status.native_code();
  err->rank = status.rank();
  copy_text(err->message, status.message());
  return status.code();
}

Status check_struct(const char* name, uint32_t caller_size, uint32_t own_size,
                    const void* caller) {
  if (caller_size < kHead || caller_size > kMaxStruct) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "{}.struct_size is {}; zero the struct and set it to "
                      "sizeof (this library's is {})",
                      name, caller_size, own_size);
  }
  const auto* bytes = static_cast<const unsigned char*>(caller);
  for (uint32_t i = own_size; i < caller_size; ++i) {
    if (bytes[i] != 0) {
      return make_error(
          ALQ_UNIMPLEMENTED,
          "{} has {} bytes, this library knows {}, and byte {} is "
          "not zero: that field needs a newer library",
          name, caller_size, own_size, i);
    }
  }
  return {};
}

Status check_out(const void* out, const char* name) {
  if (out != nullptr) return {};
  return make_error(ALQ_INVALID_ARGUMENT, "the out pointer {} is null", name);
}

Status write_text(const std::string& text, char* buf, size_t cap,
                  size_t* need) {
  if (buf == nullptr && cap > 0) {
    return make_error(ALQ_INVALID_ARGUMENT, "buf is null but cap is {}", cap);
  }
  if (need != nullptr) *need = text.size() + 1;
  if (cap == 0) return {};
  size_t n = std::min(text.size(), cap - 1);
  std::memcpy(buf, text.data(), n);
  buf[n] = 0;
  return {};
}

}  // namespace aliquot::api
