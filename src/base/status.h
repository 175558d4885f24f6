// Status and Result: how every function of the library reports failure.
// A Status is one pointer; OK allocates nothing.  Messages name what happened,
// to which object, with which numbers, and what to do.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "aliquot/aliquot.h"

namespace aliquot {

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(alq_status code, std::string message)
      : detail_(std::make_unique<Detail>()) {
    detail_->code = code;
    detail_->message = std::move(message);
  }
  Status(Status&&) = default;
  Status& operator=(Status&&) = default;
  Status(const Status& other) { *this = other; }
  Status& operator=(const Status& other) {
    if (this != &other) {
      detail_ =
          other.detail_ ? std::make_unique<Detail>(*other.detail_) : nullptr;
    }
    return *this;
  }

  bool ok() const { return detail_ == nullptr; }
  alq_status code() const { return detail_ ? detail_->code : ALQ_OK; }
  const std::string& message() const {
    static const std::string kEmpty;
    return detail_ ? detail_->message : kEmpty;
  }
  int32_t rank() const { return detail_ ? detail_->rank : -1; }
  int32_t domain() const { return detail_ ? detail_->domain : 0; }
  int32_t native_code() const { return detail_ ? detail_->native_code : 0; }

  // The world rank at fault.
  Status&& with_rank(int32_t rank) && {
    if (detail_) detail_->rank = rank;
    return std::move(*this);
  }
  Status&& with_native(int32_t domain, int32_t code) && {
    if (detail_) {
      detail_->domain = domain;
      detail_->native_code = code;
    }
    return std::move(*this);
  }

 private:
  struct Detail {
    alq_status code = ALQ_UNKNOWN;
    int32_t domain = 0, native_code = 0, rank = -1;
    std::string message;
  };
  std::unique_ptr<Detail> detail_;
};

// make_error(ALQ_INVALID_ARGUMENT, "unit {}: no parameter {}", unit, id)
template <typename... Args>
Status make_error(alq_status code, fmt::format_string<Args...> format,
                  Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

// Adds ": <strerror> (errno N)" and the native code.
Status errno_error(alq_status code, std::string what, int err);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  const T& value() const { return *value_; }
  T& operator*() { return *value_; }
  T* operator->() { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

// The only two macros of the code base: they return early.
#define ALQ_TRY(expr)                                \
  do {                                               \
    ::aliquot::Status alq_try_status = (expr);       \
    if (!alq_try_status.ok()) return alq_try_status; \
  } while (false)

#define ALQ_CONCAT_(a, b) a##b
#define ALQ_CONCAT(a, b) ALQ_CONCAT_(a, b)
// ALQ_ASSIGN(auto x, function_returning_result());
#define ALQ_ASSIGN(lhs, expr)                          \
  auto ALQ_CONCAT(alq_result_, __LINE__) = (expr);     \
  if (!ALQ_CONCAT(alq_result_, __LINE__).ok())         \
    return ALQ_CONCAT(alq_result_, __LINE__).status(); \
  lhs = std::move(ALQ_CONCAT(alq_result_, __LINE__).value())

}  // namespace aliquot
