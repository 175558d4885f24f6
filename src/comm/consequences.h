// Consequences: what fails with a group on this rank, before its streams go on:
// other groups (Group::fail_with), and words that kernels read (fail_word).
//
// A group keeps its followers until they have failed: whoever fails them is
// never the last to let go of one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace aliquot {

// A word in memory of somebody who takes it back before the memory goes.
class FailWord {
 public:
  explicit FailWord(std::atomic<uint32_t>* word) : word_(word) {}

  void raise() {
    std::lock_guard lock(mutex_);
    if (word_ != nullptr) word_->store(1);
  }
  // Nothing is written any more.
  void take_back() {
    std::lock_guard lock(mutex_);
    word_ = nullptr;
  }
  bool live() const {
    std::lock_guard lock(mutex_);
    return word_ != nullptr;
  }

 private:
  mutable std::mutex mutex_;
  std::atomic<uint32_t>* word_;
};

template <typename Core>
class Consequences {
 public:
  // Followers that have failed by now are let go of.
  void add(const std::shared_ptr<Core>& core) {
    std::vector<std::shared_ptr<Core>> gone;  // after the lock
    std::lock_guard lock(mutex_);
    gone.swap(cores_);
    for (const auto& known : gone) {
      if (known != core && !known->failed()) cores_.push_back(known);
    }
    cores_.push_back(core);
  }
  void add(const std::shared_ptr<FailWord>& word) {
    std::lock_guard lock(mutex_);
    std::erase_if(words_, [](const auto& old) { return !old->live(); });
    words_.push_back(word);
  }

  std::vector<std::shared_ptr<Core>> followers() const {
    std::lock_guard lock(mutex_);
    return cores_;
  }
  void raise_words() const {
    std::lock_guard lock(mutex_);
    for (const auto& word : words_) word->raise();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Core>> cores_;
  std::vector<std::shared_ptr<FailWord>> words_;
};

}  // namespace aliquot
