// Owns the model's working memory.  Blocks are 64-byte aligned, zeroed and live
// as long as the pool; bytes() says how much there is, for the memory report.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

namespace gpt {

class Pool {
 public:
  template <class T>
  T* take(int64_t count) {
    const auto bytes = (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    void* block = std::aligned_alloc(64, bytes == 0 ? 64 : bytes);
    if (block == nullptr) throw std::bad_alloc();
    std::memset(block, 0, bytes);
    blocks_.emplace_back(block);
    bytes_ += static_cast<int64_t>(bytes);
    return static_cast<T*>(block);
  }
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* block) const { std::free(block); }
  };
  std::vector<std::unique_ptr<void, Free>> blocks_;
  int64_t bytes_ = 0;
};

}  // namespace gpt
