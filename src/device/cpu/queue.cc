#include "device/cpu/queue.h"

#include "device/cpu/runner.h"

namespace aliquot {

Queue::Queue(Runner* runner, std::string name)
    : runner_(runner), name_(std::move(name)) {}

Queue::~Queue() {
  for (Node* node = head_; node != nullptr; node = node->next) node->op->~Op();
  delete_list(head_);
  delete_list(free_);
}

void Queue::delete_list(Node* node) {
  while (node != nullptr) delete std::exchange(node, node->next);
}

Queue::Node* Queue::take_node() {
  {
    std::lock_guard lock(mutex_);
    if (free_ != nullptr) {
      Node* node = std::exchange(free_, free_->next);
      node->next = nullptr;
      return node;
    }
  }
  return new Node;
}

uint64_t Queue::append(Node* node) {
  uint64_t number = 0;
  bool is_head = false;
  runner_->add_pending();
  {
    std::lock_guard lock(mutex_);
    is_head = head_ == nullptr;
    (is_head ? head_ : tail_->next) = node;
    tail_ = node;
    number = issued_.fetch_add(1) + 1;
  }
  if (is_head) run_exclusively(false, true);
  runner_->wake();
  return number;
}

Step Queue::run(bool slow) {
  if (idle()) return Step::kWaiting;
  return run_exclusively(slow, false);
}

// One runner at a time.  Who finds the queue busy says so and leaves; the
// runner then looks once more, so that nothing is missed by either.
Step Queue::run_exclusively(bool slow, bool post_only) {
  Step result = Step::kWaiting;
  do {
    if (busy_.exchange(true)) {
      missed_.store(true);
      if (busy_.exchange(true)) return result;
    }
    missed_.store(false);
    Step step = run_head(slow, post_only);
    if (step != Step::kWaiting) result = step;
    busy_.store(false);
  } while (missed_.load());
  return result;
}

Step Queue::run_head(bool slow, bool post_only) {
  Node* node = nullptr;
  {
    std::lock_guard lock(mutex_);
    node = head_;
  }
  if (node == nullptr) return Step::kWaiting;
  if (post_only) {
    node->op->post();
    return Step::kWaiting;
  }
  Step step = node->op->step(slow);
  wake_at_.store(step == Step::kWaiting ? node->op->wake_at() : INT64_MAX);
  if (step == Step::kWaiting || step == Step::kProgress) return step;
  finish(node, step);
  return Step::kDone;
}

void Queue::finish(Node* node, Step step) {
  Status status = step == Step::kFailed ? node->op->status() : Status();
  node->op->~Op();
  Op* next = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (!status.ok() && error_.ok()) {
      error_ = std::move(status);
      error_number_ = completed_.load() + 1;
    }
    head_ = node->next;
    if (head_ == nullptr) tail_ = nullptr;
    node->next = free_;
    free_ = node;
    if (head_ != nullptr) next = head_->op;
    completed_.fetch_add(1);
  }
  if (next != nullptr) next->post();
  runner_->remove_pending();
  runner_->ring_self();
}

Status Queue::first_error(uint64_t number, bool clear) {
  std::lock_guard lock(mutex_);
  if (error_.ok() || error_number_ > number) return {};
  return clear ? std::exchange(error_, Status()) : error_;
}

}  // namespace aliquot
