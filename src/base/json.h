// JSON values: objects keep their order, integers stay exact.  Parsing is
// nlohmann's, included in json.cc alone; writing is ours.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"

namespace aliquot {

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;

  Json() = default;  // null
  Json(bool x) : value_(x) {}
  Json(std::signed_integral auto x) : value_(int64_t{x}) {}
  // Above the largest int64_t: the nearest double.
  Json(std::unsigned_integral auto x) {
    if (x <= uint64_t{INT64_MAX}) {
      value_ = static_cast<int64_t>(x);
    } else {
      value_ = static_cast<double>(x);
    }
  }
  Json(std::floating_point auto x) : value_(double{x}) {}
  Json(const char* x) : value_(std::string(x)) {}
  Json(std::string_view x) : value_(std::string(x)) {}
  Json(std::string x) : value_(std::move(x)) {}

  static Json array() { return of(Array()); }
  static Json object() { return of(Object()); }

  // Makes null an object; sets or adds a member.
  Json& operator[](std::string_view key);
  // Makes null an array.
  void push_back(Json item);

  bool is_null() const { return holds<std::monostate>(); }
  bool is_object() const { return holds<Object>(); }
  bool is_array() const { return holds<Array>(); }
  // The member or item, null when there is none.
  const Json& at(std::string_view key) const;
  const Json& at(size_t index) const;
  size_t size() const;  // members or items
  const Object& members() const;

  // The value, or `other` when it is of another type.
  bool as_bool(bool other = false) const;
  int64_t as_int(int64_t other = 0) const;
  double as_double(double other = 0) const;
  std::string as_string(const std::string& other = "") const;

  // indent < 0: one line.  Doubles are written with the fewest digits that
  // read back as the same value; those that JSON lacks (NaN, infinity) as null;
  // bytes that are not UTF-8 as U+FFFD.
  std::string dump(int indent = -1) const;

  // Errors name the byte.  Nesting deeper than 256 is refused.
  static Result<Json> parse(std::string_view text);

 private:
  using Value = std::variant<std::monostate, bool, int64_t, double, std::string,
                             Array, Object>;
  template <typename T>
  bool holds() const {
    return std::holds_alternative<T>(value_);
  }
  static Json of(Value value) {
    Json json;
    json.value_ = std::move(value);
    return json;
  }
  void write(std::string& out, int indent, int depth) const;

  Value value_;
};

}  // namespace aliquot
