#include "base/json.h"

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace aliquot {
namespace {

constexpr size_t kMaxDepth = 256;

// Leaked: nothing happens at exit.
const Json& null_json() {
  static const Json* instance = new Json;
  return *instance;
}

// Bytes of the UTF-8 sequence at the front of text; 0 if it is none.
size_t utf8_length(std::string_view text) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  uint8_t lead = byte(0);
  size_t n = lead < 0x80   ? 1
             : lead < 0xC2 ? 0
             : lead < 0xE0 ? 2
             : lead < 0xF0 ? 3
             : lead < 0xF5 ? 4
                           : 0;
  if (n == 0 || n > text.size()) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (lead == 0xE0 && byte(1) < 0xA0) return 0;   // overlong
  if (lead == 0xED && byte(1) >= 0xA0) return 0;  // surrogate
  if (lead == 0xF0 && byte(1) < 0x90) return 0;   // overlong
  if (lead == 0xF4 && byte(1) >= 0x90) return 0;  // above U+10FFFF
  return n;
}

void write_string(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    size_t n = utf8_length(text);
    char c = text[0];
    if (n == 0) {
      out += "\xEF\xBF\xBD";
    } else if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<uint8_t>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += text.substr(0, n);
    }
    text.remove_prefix(n == 0 ? 1 : n);
  }
  out += '"';
}

void write_double(std::string& out, double x) {
  if (!std::isfinite(x)) {
    out += "null";
    return;
  }
  char buffer[32];
  auto [end, ec] = std::to_chars(buffer, buffer + sizeof buffer, x);
  std::string_view digits(buffer, static_cast<size_t>(end - buffer));
  out += digits;
  // So that it reads back as a double.
  if (digits.find_first_of(".e") == std::string_view::npos) out += ".0";
}

void new_line(std::string& out, int indent, int depth) {
  if (indent < 0) return;
  out += '\n';
  out.append(static_cast<size_t>(indent) * static_cast<size_t>(depth), ' ');
}

// Builds a Json from nlohmann's events; throws nothing.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return put(Json()); }
  bool boolean(bool x) override { return put(x); }
  bool number_integer(number_integer_t x) override { return put(x); }
  bool number_unsigned(number_unsigned_t x) override { return put(x); }
  bool number_float(number_float_t x, const string_t&) override {
    return put(x);
  }
  bool string(string_t& x) override { return put(std::move(x)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool key(string_t& x) override {
    stack_.back().key = std::move(x);
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    error_ = fmt::format("not JSON at byte {}", position);
    return false;
  }
  Json take() { return std::move(root_); }
  const std::string& error() const { return error_; }

 private:
  struct Level {
    Json value;
    std::string key;
  };
  bool put(Json x) {
    if (stack_.empty()) {
      root_ = std::move(x);
    } else if (stack_.back().value.is_object()) {
      stack_.back().value[stack_.back().key] = std::move(x);
    } else {
      stack_.back().value.push_back(std::move(x));
    }
    return true;
  }
  bool open(Json x) {
    if (stack_.size() == kMaxDepth) {
      error_ = fmt::format("nested deeper than {}", kMaxDepth);
      return false;
    }
    stack_.push_back({std::move(x), ""});
    return true;
  }
  bool close() {
    Json x = std::move(stack_.back().value);
    stack_.pop_back();
    return put(std::move(x));
  }

  std::vector<Level> stack_;
  Json root_;
  std::string error_;
};

}  // namespace

Json& Json::operator[](std::string_view key) {
  if (!is_object()) value_ = Object();
  Object& object = *std::get_if<Object>(&value_);
  for (auto& [name, member] : object) {
    if (name == key) return member;
  }
  object.emplace_back(std::string(key), Json());
  return object.back().second;
}

void Json::push_back(Json item) {
  if (!is_array()) value_ = Array();
  std::get_if<Array>(&value_)->push_back(std::move(item));
}

const Json& Json::at(std::string_view key) const {
  for (auto& [name, member] : members()) {
    if (name == key) return member;
  }
  return null_json();
}

const Json& Json::at(size_t index) const {
  const Array* array = std::get_if<Array>(&value_);
  return array != nullptr && index < array->size() ? (*array)[index]
                                                   : null_json();
}

size_t Json::size() const {
  const Array* array = std::get_if<Array>(&value_);
  return array != nullptr ? array->size() : members().size();
}

const Json::Object& Json::members() const {
  static const Object* empty = new Object;
  const Object* object = std::get_if<Object>(&value_);
  return object != nullptr ? *object : *empty;
}

bool Json::as_bool(bool other) const {
  const bool* x = std::get_if<bool>(&value_);
  return x != nullptr ? *x : other;
}

int64_t Json::as_int(int64_t other) const {
  const int64_t* x = std::get_if<int64_t>(&value_);
  return x != nullptr ? *x : other;
}

double Json::as_double(double other) const {
  if (holds<int64_t>()) return static_cast<double>(as_int());
  const double* x = std::get_if<double>(&value_);
  return x != nullptr ? *x : other;
}

std::string Json::as_string(const std::string& other) const {
  const std::string* x = std::get_if<std::string>(&value_);
  return x != nullptr ? *x : other;
}

std::string Json::dump(int indent) const {
  std::string out;
  write(out, indent, 0);
  return out;
}

void Json::write(std::string& out, int indent, int depth) const {
  if (const Array* array = std::get_if<Array>(&value_)) {
    out += '[';
    for (size_t i = 0; i < array->size(); ++i) {
      if (i > 0) out += indent < 0 ? ", " : ",";
      new_line(out, indent, depth + 1);
      (*array)[i].write(out, indent, depth + 1);
    }
    if (!array->empty()) new_line(out, indent, depth);
    out += ']';
  } else if (is_object()) {
    out += '{';
    bool first = true;
    for (auto& [name, member] : members()) {
      if (!first) out += indent < 0 ? ", " : ",";
      first = false;
      new_line(out, indent, depth + 1);
      write_string(out, name);
      out += ": ";
      member.write(out, indent, depth + 1);
    }
    if (!first) new_line(out, indent, depth);
    out += '}';
  } else if (const std::string* text = std::get_if<std::string>(&value_)) {
    write_string(out, *text);
  } else if (const double* x = std::get_if<double>(&value_)) {
    write_double(out, *x);
  } else if (const int64_t* i = std::get_if<int64_t>(&value_)) {
    out += fmt::format("{}", *i);
  } else {
    out += is_null() ? "null" : as_bool() ? "true" : "false";
  }
}

Result<Json> Json::parse(std::string_view text) {
  Builder builder;
  bool ok = nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  if (ok) return builder.take();
  return make_error(ALQ_INVALID_ARGUMENT, "{}",
                    builder.error().empty() ? "not JSON" : builder.error());
}

}  // namespace aliquot
