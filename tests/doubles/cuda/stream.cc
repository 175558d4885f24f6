// The threads of streams.
#include "tests/doubles/cuda/stream.h"

#include <time.h>

#include <random>

namespace aliquot::cuda_double {
namespace {

void sleep_us(int64_t us) {
  timespec t{us / 1'000'000, us % 1'000'000 * 1000};
  nanosleep(&t, nullptr);
}

}  // namespace

Handles& handles() {
  static auto* h = new Handles;
  return *h;
}

void Point::set() {
  std::lock_guard lock(mutex_);
  reached_ = true;
  reached_changed_.notify_all();
}
void Point::wait() {
  std::unique_lock lock(mutex_);
  reached_changed_.wait(lock, [&] { return reached_; });
}
bool Point::reached() const {
  std::lock_guard lock(mutex_);
  return reached_;
}

struct StreamImpl::Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Item> items;
  std::atomic<int64_t>* items_left = nullptr;
  bool busy = false, closing = false, has_thread = false;
  std::minstd_rand random;
  int64_t pace = 1;  // delays are multiplied with it
};

StreamImpl::StreamImpl(ContextImpl* context_in, unsigned flags_in)
    : context(context_in), flags(flags_in), queue_(std::make_shared<Queue>()) {
  Lock lock(state().mutex);
  id = ++handles().created;
  queue_->items_left = &context->items;
  queue_->random.seed(
      static_cast<uint32_t>(state().seed.load() * 7919 + 104729 * id));
  queue_->random.discard(4);  // near seeds begin alike
  // Some streams hurry ahead and some are always behind.
  constexpr int64_t kPaces[] = {0, 1, 1, 4};
  queue_->pace = kPaces[queue_->random() / 7 % 4];
}

void StreamImpl::run(std::shared_ptr<Queue> queue) {
  std::unique_lock lock(queue->mutex);
  while (true) {
    queue->changed.wait(
        lock, [&] { return !queue->items.empty() || queue->closing; });
    if (queue->items.empty()) return;
    Item item = std::move(queue->items.front());
    queue->items.pop_front();
    queue->busy = true;
    int64_t longest = state().delay_us.load() * queue->pace;
    // Every second item comes at once, so that bursts happen too.
    int64_t delay = 0;
    if (longest > 0 && queue->random() % 2 == 0) {
      delay = static_cast<int64_t>(queue->random()) % (longest + 1);
    }
    lock.unlock();
    if (delay > 0) sleep_us(delay);
    item();
    item = nullptr;
    --*queue->items_left;
    lock.lock();
    queue->busy = false;
    queue->changed.notify_all();
  }
}

void StreamImpl::push(Item item) {
  std::lock_guard lock(queue_->mutex);
  ++context->items;
  queue_->items.push_back(std::move(item));
  if (!queue_->has_thread) {
    queue_->has_thread = true;
    std::thread(run, queue_).detach();
  }
  queue_->changed.notify_all();
}

void StreamImpl::drain() {
  auto point = std::make_shared<Point>();
  push([point] { point->set(); });
  point->wait();
}

bool StreamImpl::idle() {
  std::lock_guard lock(queue_->mutex);
  return queue_->items.empty() && !queue_->busy;
}

void StreamImpl::close() {
  std::lock_guard lock(queue_->mutex);
  queue_->closing = true;
  queue_->changed.notify_all();
}

namespace {

// Those of the library's own do not wait for the legacy stream, so it is like
// any other here.  One per context and, for the other, thread; never destroyed.
StreamImpl* default_stream(bool of_thread) {
  ContextImpl* context = current_context();
  if (context == nullptr) return nullptr;
  static auto* legacy = new std::map<ContextImpl*, StreamImpl*>;
  thread_local std::map<ContextImpl*, StreamImpl*> own;
  StreamImpl*& stream = of_thread ? own[context] : (*legacy)[context];
  if (stream == nullptr) stream = new StreamImpl(context, 0);
  return stream;
}

}  // namespace

StreamImpl* find_stream(CUstream stream, const char* caller) {
  Lock lock(state().mutex);
  const bool of_thread = stream == per_thread_stream();
  if (stream == nullptr || stream == legacy_stream() || of_thread) {
    if (stream != nullptr && state().default_streams) {
      return default_stream(of_thread);
    }
    violation("%s on a default stream", caller);
    return nullptr;
  }
  auto* s = reinterpret_cast<StreamImpl*>(stream);
  return handles().streams.count(s) == 1 ? s : nullptr;
}

EventImpl* find_event(CUevent event) {
  Lock lock(state().mutex);
  auto* e = reinterpret_cast<EventImpl*>(event);
  return handles().events.count(e) == 1 ? e : nullptr;
}

CUresult submit(CUstream stream, const char* caller, Item item) {
  Lock lock(state().mutex);
  StreamImpl* s = find_stream(stream, caller);
  if (s == nullptr) return kInvalidHandle;
  if (CUresult failed = injected(caller, s->context)) return failed;
  if (CUresult sticky = s->context->sticky) return sticky;
  ContextImpl* context = s->context;
  Item guarded = [context, item = std::move(item)] {
    if (context->sticky == kSuccess) item();
  };
  if (s->capture == nullptr) {
    s->push(std::move(guarded));
    return kSuccess;
  }
  Capture& capture = *s->capture;
  if (capture.invalid) return kCaptureInvalidated;
  capture.nodes.push_back({std::move(guarded), s->tail, s->lane});
  s->tail = {capture.nodes.size() - 1};
  return kSuccess;
}

}  // namespace aliquot::cuda_double
