// Errors, descriptors, handles and dtypes of aliquot.hpp.
#pragma once

#include <aliquot/aliquot.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace alq {

// A failed call.  rank is the world rank at fault or -1.
class error : public std::runtime_error {
 public:
  explicit error(const alq_error& e)
      : std::runtime_error(e.message),
        code_(e.code),
        rank_(e.rank),
        native_(e.native_code),
        domain_(e.domain) {}
  alq_status code() const noexcept { return code_; }
  int32_t rank() const noexcept { return rank_; }
  int32_t native_code() const noexcept { return native_; }
  int32_t domain() const noexcept { return domain_; }
  const char* name() const noexcept { return alq_status_name(code_); }

 private:
  alq_status code_;
  int32_t rank_, native_, domain_;
};

// A zeroed descriptor that knows its size: zero means "default" everywhere.
template <typename Struct>
Struct desc() {
  Struct out{};
  out.struct_size = sizeof(Struct);
  return out;
}

namespace detail {

// Calls f(args..., &err) and throws what it reports.
template <typename Function, typename... Args>
void call(Function f, Args... args) {
  alq_error e;
  e.struct_size = sizeof(e);
  e.flags = 0;
  if (f(args..., &e) != ALQ_OK) throw error(e);
}

// A (buf, cap, need) function's whole text; it may grow between two calls.
template <typename Function, typename... Args>
std::string text(Function f, Args... args) {
  size_t need = 0;
  call(f, args..., static_cast<char*>(nullptr), size_t{0}, &need);
  std::string out;
  while (out.size() < need) {
    out.resize(need);
    call(f, args..., out.data(), out.size(), &need);
  }
  out.resize(need > 0 ? need - 1 : 0);
  return out;
}

template <typename Handle, void (*Release)(Handle*)>
struct releaser {
  void operator()(Handle* handle) const noexcept { Release(handle); }
};
template <typename Handle, void (*Release)(Handle*)>
using owned = std::unique_ptr<Handle, releaser<Handle, Release>>;

// make<owned<...>>(create, args...) for functions that end in (T** out, err).
template <typename Owned, typename Function, typename... Args>
Owned make(Function f, Args... args) {
  typename Owned::pointer out = nullptr;
  call(f, args..., &out);
  return Owned(out);
}

}  // namespace detail

// The dtype of a C++ type; half types have no C++ type and are given by hand.
template <typename T>
inline constexpr alq_dtype dtype_of = [] {
  static_assert(sizeof(T) == 0, "no dtype for this type; pass one");
  return ALQ_DTYPE_DEFAULT;
}();
template <>
inline constexpr alq_dtype dtype_of<double> = ALQ_F64;
template <>
inline constexpr alq_dtype dtype_of<float> = ALQ_F32;
template <>
inline constexpr alq_dtype dtype_of<int8_t> = ALQ_I8;
template <>
inline constexpr alq_dtype dtype_of<int16_t> = ALQ_I16;
template <>
inline constexpr alq_dtype dtype_of<int32_t> = ALQ_I32;
template <>
inline constexpr alq_dtype dtype_of<int64_t> = ALQ_I64;
template <>
inline constexpr alq_dtype dtype_of<uint8_t> = ALQ_U8;
template <>
inline constexpr alq_dtype dtype_of<uint16_t> = ALQ_U16;
template <>
inline constexpr alq_dtype dtype_of<uint32_t> = ALQ_U32;
template <>
inline constexpr alq_dtype dtype_of<uint64_t> = ALQ_U64;
template <>
inline constexpr alq_dtype dtype_of<std::byte> = ALQ_U8;

inline bool has(const char* feature) { return alq_has(feature) != 0; }

}  // namespace alq
