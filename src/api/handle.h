// Handles: what the opaque pointers of the ABI point to.
//
// A handle lives in a shell; shells are never given back to the system and are
// reused only after many others, so a pointer that was released, or never was a
// handle, is recognised instead of followed.  Any thread may release a handle
// that another one is calling with: the object then ends with that call.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

namespace aliquot::api {

// The handles that this thread's running call uses.
class CallPins {
 public:
  using Drop = void (*)(const void* handle);

  // From the beginning to the end of a call.
  class Scope {
   public:
    Scope() : begin_(pins().count_) {}
    ~Scope() { pins().drop_to(begin_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    size_t begin_;
  };

  // False if there is no room, or no call.
  static bool add(const void* handle, Drop drop) {
    CallPins& mine = pins();
    if (mine.count_ == kMost) return false;
    mine.pins_[mine.count_++] = {handle, drop};
    return true;
  }

 private:
  static constexpr size_t kMost = 8;
  struct Pin {
    const void* handle;
    Drop drop;
  };

  static CallPins& pins() {
    static thread_local CallPins mine;
    return mine;
  }
  void drop_to(size_t begin) {
    while (count_ > begin) {
      Pin pin = pins_[--count_];
      pin.drop(pin.handle);
    }
  }

  Pin pins_[kMost];
  size_t count_ = 0;
};

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
    shell->state.store(kLive, std::memory_order_release);
    return reinterpret_cast<Opaque*>(shell);
  }

  // Null when the pointer is not a live handle of this kind.  The object may
  // end when another thread releases it: see use().
  Object* get(const Opaque* handle) const {
    const Shell* shell = find(handle);
    return shell != nullptr && live(*shell) ? shell->object.get() : nullptr;
  }
  std::shared_ptr<Object> share(const Opaque* handle) const {
    const Shell* shell = find(handle);
    return shell != nullptr && live(*shell) ? shell->object : nullptr;
  }

  // As get, and the object lasts until the end of the thread's running call.
  Object* use(const Opaque* handle) {
    Shell* shell = const_cast<Shell*>(find(handle));
    if (shell == nullptr) return nullptr;
    uint32_t state = shell->state.load(std::memory_order_relaxed);
    do {
      if ((state & kLive) == 0) return nullptr;
    } while (!shell->state.compare_exchange_weak(state, state + 1));
    auto drop = [](const void* used) {
      auto* pool = &instance();
      pool->drop(const_cast<Shell*>(pool->find(used)));
    };
    Object* object = shell->object.get();
    if (!CallPins::add(handle, drop)) this->drop(shell);
    return object;
  }

  void release(Opaque* handle) {
    Shell* shell = const_cast<Shell*>(find(handle));
    if (shell == nullptr) return;
    uint32_t before = shell->state.fetch_and(~kLive);
    if (before == kLive) reclaim(shell);
  }

 private:
  struct Shell {
    std::atomic<uint32_t> state{0};  // kLive, and how many calls use it
    std::shared_ptr<Object> object;
  };
  static constexpr uint32_t kLive = uint32_t{1} << 31;
  static constexpr size_t kChunk = 512, kQuarantine = 256;
  struct Chunk {
    Shell shells[kChunk];
    Chunk* next = nullptr;
  };

  static bool live(const Shell& shell) {
    return (shell.state.load(std::memory_order_acquire) & kLive) != 0;
  }

  // One call less.  The last user of a released object ends it.
  void drop(Shell* shell) {
    if (shell->state.fetch_sub(1) == 1) reclaim(shell);
  }

  void reclaim(Shell* shell) {
    // The object's end may release other handles: not under the lock.
    std::shared_ptr<Object> object = std::move(shell->object);
    std::lock_guard lock(mutex_);
    free_.push_back(shell);
  }

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
