#include "base/log.h"

namespace aliquot {

void LogRing::add(const char* level, const char* object, std::string text) {
  std::lock_guard lock(mutex_);
  if (lines_.size() == kCapacity) {
    lines_.pop_front();
    ++dropped_;
  }
  lines_.push_back(fmt::format("{} {}: {}", level, object, text));
}

std::string LogRing::peek() const {
  std::lock_guard lock(mutex_);
  if (lines_.empty()) return {};
  return dropped_ == 0 ? lines_.front()
                       : fmt::format("{} ({} earlier lines dropped)",
                                     lines_.front(), dropped_);
}

void LogRing::pop() {
  std::lock_guard lock(mutex_);
  if (lines_.empty()) return;
  lines_.pop_front();
  dropped_ = 0;
}

}  // namespace aliquot
