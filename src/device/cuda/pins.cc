#include "device/cuda/pins.h"

#include <time.h>

#include <algorithm>

#include "device/cpu/thread.h"

namespace aliquot::cuda {

Pins::~Pins() {
  for (Pin& pin : pins_) core_->give_event(pin.event);
}

Status Pins::add(CUstream stream, uint64_t capture,
                 std::shared_ptr<void> object) {
  if (capture != 0) {
    std::lock_guard lock(mutex_);
    captured_.push_back(std::move(object));
    return {};
  }
  ALQ_ASSIGN(CUevent event, core_->take_event());
  Status status =
      core_->check(core_->api().event_record(event, stream), "cuEventRecord");
  if (!status.ok()) {
    core_->give_event(event);
    return status;
  }
  std::lock_guard lock(mutex_);
  pins_.push_back({event, std::move(object)});
  if (!running_) {
    std::thread thread;
    // Without one the next call tries again.
    running_ =
        start_thread(&thread, [self = shared_from_this()] { run(self); });
    if (running_) thread.detach();
  }
  return {};
}

void Pins::drop_captured() {
  std::list<std::shared_ptr<void>> gone;
  std::lock_guard lock(mutex_);
  gone.swap(captured_);
}

void Pins::run(std::shared_ptr<Pins> self) {
  int64_t sleep = 50'000;
  while (self->release_done()) {
    timespec t{0, sleep};
    nanosleep(&t, nullptr);
    sleep = std::min<int64_t>(2 * sleep, 5'000'000);
  }
}

bool Pins::release_done() {
  std::list<Pin> done;  // destroyed without the lock: objects may pin others
  std::lock_guard lock(mutex_);
  ContextScope scope(*core_);
  for (auto it = pins_.begin(); it != pins_.end();) {
    auto next = std::next(it);
    // An error counts as done: nothing runs any more.
    if (core_->query(it->event) != kNotReady) {
      core_->give_event(it->event);
      done.splice(done.end(), pins_, it);
    }
    it = next;
  }
  running_ = !pins_.empty();
  return running_;
}

}  // namespace aliquot::cuda
