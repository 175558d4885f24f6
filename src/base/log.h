// A bounded ring of log lines.  The library never prints: the host reads the
// ring (alq_log_read).  When full, the oldest line is dropped and counted.
#pragma once

#include <fmt/format.h>

#include <deque>
#include <mutex>
#include <string>

namespace aliquot {

class LogRing {
 public:
  template <typename... Args>
  void info(const char* object, fmt::format_string<Args...> format,
            Args&&... args) {
    add("info", object, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void warn(const char* object, fmt::format_string<Args...> format,
            Args&&... args) {
    add("warning", object, fmt::format(format, std::forward<Args>(args)...));
  }

  // The oldest line, or "" when empty.  peek leaves it in place.
  std::string peek() const;
  void pop();

 private:
  void add(const char* level, const char* object, std::string text);

  static constexpr size_t kCapacity = 1024;
  mutable std::mutex mutex_;
  std::deque<std::string> lines_;
  uint64_t dropped_ = 0;
};

}  // namespace aliquot
