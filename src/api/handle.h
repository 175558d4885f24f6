// Handles: what the opaque pointers of the ABI point to.
//
// A handle lives in a shell; shells are never given back to the system and are
// reused only after many others, so a pointer that was released, or never was a
// handle, is recognised instead of followed.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

namespace aliquot::api {

template <typename Opaque, typename Object>
class HandlePool {
 public:
  // One pool per kind, never destroyed: handles may be released at exit.
  static HandlePool& instance() {
    static HandlePool& pool = *new HandlePool;
    return pool;
  }

  Opaque* make(std::shared_ptr<Object> object) {
    std::lock_guard lock(mutex_);
    if (free_.size() <= kQuarantine) grow();
    Shell* shell = free_.front();
    free_.pop_front();
    shell->object = std::move(object);
    shell->live.store(true, std::memory_order_release);
    return reinterpret_cast<Opaque*>(shell);
  }

  // Null when the pointer is not a live handle of this kind.
  Object* get(const Opaque* handle) const {
    const Shell* shell = find(handle);
    return shell != nullptr && shell->live.load(std::memory_order_acquire)
               ? shell->object.get()
               : nullptr;
  }
  std::shared_ptr<Object> share(const Opaque* handle) const {
    const Shell* shell = find(handle);
    return shell != nullptr && shell->live.load(std::memory_order_acquire)
               ? shell->object
               : nullptr;
  }

  void release(Opaque* handle) {
    Shell* shell = const_cast<Shell*>(find(handle));
    if (shell == nullptr || !shell->live.exchange(false)) return;
    // The object's end may release other handles: not under the lock.
    std::shared_ptr<Object> object = std::move(shell->object);
    {
      std::lock_guard lock(mutex_);
      free_.push_back(shell);
    }
  }

 private:
  struct Shell {
    std::atomic<bool> live{false};
    std::shared_ptr<Object> object;
  };
  static constexpr size_t kChunk = 512, kQuarantine = 256;
  struct Chunk {
    Shell shells[kChunk];
    Chunk* next = nullptr;
  };

  const Shell* find(const void* pointer) const {
    for (const Chunk* chunk = chunks_.load(std::memory_order_acquire);
         chunk != nullptr; chunk = chunk->next) {
      auto at = reinterpret_cast<uintptr_t>(pointer);
      auto begin = reinterpret_cast<uintptr_t>(&chunk->shells[0]);
      if (at >= begin && at < begin + sizeof chunk->shells &&
          (at - begin) % sizeof(Shell) == 0) {
        return reinterpret_cast<const Shell*>(pointer);
      }
    }
    return nullptr;
  }

  void grow() {
    auto* chunk = new Chunk;
    chunk->next = chunks_.load(std::memory_order_relaxed);
    for (Shell& shell : chunk->shells) free_.push_back(&shell);
    chunks_.store(chunk, std::memory_order_release);
  }

  std::mutex mutex_;
  std::deque<Shell*> free_;
  std::atomic<Chunk*> chunks_{nullptr};
};

}  // namespace aliquot::api
