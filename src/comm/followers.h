// Followers: the groups of this rank that fail with another one (fail_with),
// which keeps them: whoever fails them is never the last to let go of one.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

namespace aliquot {

template <typename Core>
class Followers {
 public:
  void add(const std::shared_ptr<Core>& core) {
    std::lock_guard lock(mutex_);
    if (std::ranges::find(cores_, core) == cores_.end()) cores_.push_back(core);
  }
  std::vector<std::shared_ptr<Core>> all() const {
    std::lock_guard lock(mutex_);
    return cores_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Core>> cores_;
};

}  // namespace aliquot
