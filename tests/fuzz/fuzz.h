// A fuzz target: one function over bytes from outside, and where to begin.
//
// A target's input is a script: it is read with Script into steps (connect,
// send a frame that claims 2^60 bytes, cut a file), so that changed bytes give
// other steps and not only a bad first one.  driver.cc runs it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

// Runs one input; ends the process if something does not hold.  Returns 0.
int one_input(const uint8_t* data, size_t size);

namespace aliquot::fuzz {

struct Target {
  const char* name;
  int64_t most_memory;  // live bytes while one input runs
  std::vector<std::string> seeds;
};
Target target();

// Ends the process with the text unless `good`.
void expect(bool good, std::string_view what);

// Takes an input apart; past its end everything is zero.
class Script {
 public:
  Script(const uint8_t* data, size_t size)
      : rest_(reinterpret_cast<const char*>(data), size) {}
  bool empty() const { return rest_.empty(); }
  template <typename T>
  T number() {
    T value = 0;
    std::string_view bytes = text(sizeof value);
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  uint8_t byte() { return number<uint8_t>(); }
  std::string_view text(size_t bytes) {
    std::string_view out = rest_.substr(0, bytes);
    rest_.remove_prefix(out.size());
    return out;
  }
  // A byte that says how many, and as many bytes.
  std::string_view short_text() { return text(byte()); }
  std::string_view all() { return text(rest_.size()); }

 private:
  std::string_view rest_;
};

// Writes what Script reads.
class Writer {
 public:
  template <typename T>
  Writer& number(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Writer& byte(int value) { return number(static_cast<uint8_t>(value)); }
  Writer& text(std::string_view bytes) { return out_.append(bytes), *this; }
  Writer& short_text(std::string_view bytes) {
    return byte(static_cast<int>(bytes.size())).text(bytes);
  }
  operator std::string() const { return out_; }

 private:
  std::string out_;
};

}  // namespace aliquot::fuzz
