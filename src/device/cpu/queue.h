// Queue: a CPU stream.  Operations run in the order they were enqueued, by
// whoever waits; one thread at a time runs a queue.  Nodes are recycled: in
// steady state enqueueing allocates nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "device/cpu/op.h"
#include "device/device.h"

namespace aliquot {

class Runner;

class Queue : public Stream, public std::enable_shared_from_this<Queue> {
 public:
  Queue(Runner* runner, std::string name);
  ~Queue() override;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  static constexpr size_t kNodeBytes = 2624;

  // Appends an operation; returns its number, from 1.
  template <typename T, typename... Args>
  uint64_t enqueue(Args&&... args) {
    static_assert(sizeof(T) <= kNodeBytes && alignof(T) <= 64);
    Node* node = take_node();
    node->op = new (node->storage) T(std::forward<Args>(args)...);
    return append(node);
  }

  // Numbers of the last operation enqueued and of the last one finished.
  uint64_t issued() const { return issued_.load(); }
  uint64_t completed() const { return completed_.load(); }
  bool idle() const { return completed() == issued(); }

  // Runs the head a little.  kDone: one operation ended.  kWaiting: nothing to
  // do, or another thread is running this queue.
  Step run(bool slow);

  // The first error among the operations up to `number` that is not yet
  // reported; clear: do not report it again.
  Status first_error(uint64_t number, bool clear);

  // When the head wants to be run again whatever happens.
  int64_t wake_at() const { return wake_at_.load(); }

  Runner* runner() const { return runner_; }
  const std::string& name() const { return name_; }

 private:
  struct Node {
    Node* next = nullptr;
    Op* op = nullptr;
    alignas(64) std::byte storage[kNodeBytes];
  };

  Node* take_node();
  uint64_t append(Node* node);
  Step run_head(bool slow, bool post_only);
  Step run_exclusively(bool slow, bool post_only);
  void finish(Node* node, Step step);
  static void delete_list(Node* node);

  Runner* const runner_;
  const std::string name_;
  std::mutex mutex_;  // list, freelist, error
  Node *head_ = nullptr, *tail_ = nullptr, *free_ = nullptr;
  Status error_;
  uint64_t error_number_ = 0;
  std::atomic<uint64_t> issued_{0}, completed_{0};
  std::atomic<int64_t> wake_at_{INT64_MAX};
  std::atomic<bool> busy_{false};    // some thread runs the head
  std::atomic<bool> missed_{false};  // another wanted to, meanwhile
};

}  // namespace aliquot
