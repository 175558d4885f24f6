#include "device/cpu/runner.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

#include "device/cpu/thread.h"

namespace aliquot {
namespace {

constexpr int kSpins = 200;
constexpr int kYields = 4;
// After so many pauses it is looked who else is on the core.
constexpr int kLook = 8;
// An upper bound of one sleep, so that deadlines are looked at.
constexpr int64_t kTickNs = 100'000'000;

}  // namespace

int online_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

Runner::Runner(std::shared_ptr<Context> context, int32_t progress)
    : context_(std::move(context)) {
  bool on = progress == ALQ_PROGRESS_ON ||
            (progress == ALQ_PROGRESS_AUTO &&
             online_cores() >= 2 * std::max(1, context_->local_size));
  set_progress_thread(on);
}

Runner::~Runner() {
  std::lock_guard lock(thread_mutex_);
  if (!thread_.joinable()) return;
  if (fork_stamp() != stamp_) {
    // A forked child: there is no thread to join, and its handle must not be
    // destroyed either.
    new std::thread(std::move(thread_));
    return;
  }
  end_progress_thread();
}

void Runner::set_progress_thread(bool on) {
  std::lock_guard lock(thread_mutex_);
  if (on == thread_.joinable()) return;
  if (!on) return end_progress_thread();
  stop_.store(false);
  // Without one, operations advance when somebody waits.
  if (!start_thread(&thread_, [this] { progress_loop(); })) {
    context_->log.warn("progress", "the system gives no progress thread");
    return;
  }
  has_thread_.store(true);
}

void Runner::end_progress_thread() {
  has_thread_.store(false);
  stop_.store(true);
  work_word_.fetch_add(1);
  futex_wake_all(work_word_);
  bell().rings.fetch_add(1);
  futex_wake_all(bell().rings);
  thread_.join();
}

void Runner::use_bells(Bell* bells, int32_t rank, int32_t ranks,
                       std::shared_ptr<void> owner) {
  std::lock_guard lock(queues_mutex_);
  used_.push_back({bells, rank, ranks, std::move(owner)});
  spins_.store(ranks > online_cores() ? 0 : kSpins);
  const Bells* before = bells_.exchange(&used_.back());
  // Whoever sleeps on the old one must move over.
  Bell& old = before->all[before->rank];
  old.rings.fetch_add(1);
  futex_wake_all(old.rings);
}

// Where another rank was seen last is where this one is now.
bool Runner::shares_core() const {
  const Bells& bells = *bells_.load();
  const int32_t core = sched_getcpu();
  Bell& own = bells.all[bells.rank];
  if (own.core.load(std::memory_order_relaxed) != core) own.core.store(core);
  for (int32_t r = 0; r < bells.ranks; ++r) {
    if (r != bells.rank && bells.all[r].core.load() == core) return true;
  }
  return false;
}

// Once per tick of the coarse clock.
bool Runner::may_part() {
  const int64_t now = coarse_ns();
  return parted_.exchange(now) != now;
}

std::shared_ptr<Queue> Runner::create_queue(std::string name) {
  auto queue = std::make_shared<Queue>(this, std::move(name));
  std::lock_guard lock(queues_mutex_);
  auto queues = std::make_shared<Queues>();
  // Streams dropped by their users live on until they have run dry.
  for (const auto& old : *queues_) {
    bool dropped = old.use_count() == 1 && old->idle();
    if (!dropped) queues->push_back(old);
  }
  queues->push_back(queue);
  queues_ = std::move(queues);
  return queue;
}

std::shared_ptr<Queue> Runner::find_queue(const void* address) {
  std::lock_guard lock(queues_mutex_);
  for (const auto& queue : *queues_) {
    if (static_cast<const Stream*>(queue.get()) == address) return queue;
  }
  return nullptr;
}

std::shared_ptr<const Runner::Queues> Runner::queues() {
  std::lock_guard lock(queues_mutex_);
  return queues_;
}

int64_t Runner::first_wake() {
  int64_t first = INT64_MAX;
  auto all = queues();
  for (const auto& queue : *all) first = std::min(first, queue->wake_at());
  return first;
}

bool Runner::run_queues(bool slow) {
  if (!busy()) return false;
  bool moved = false;
  auto all = queues();
  for (const auto& queue : *all) {
    moved |= queue->run(slow) != Step::kWaiting;
  }
  return moved;
}

Step Runner::poll_all(Poll poll, bool slow) {
  Step step = poll(slow);
  if (step == Step::kDone || step == Step::kFailed) return step;
  return run_queues(slow) ? Step::kProgress : step;
}

bool Runner::wait(Poll poll, Deadline deadline, WaitCounts* counts) {
  WaitCounts ignored;
  if (counts == nullptr) counts = &ignored;
  const int spins = spins_.load(std::memory_order_relaxed);
  int idle = 0;
  bool slow = false;
  for (;;) {
    Step step = poll_all(poll, slow);
    if (step == Step::kDone || step == Step::kFailed) return true;
    slow = false;
    if (step == Step::kProgress) {
      idle = 0;
    } else if (idle == kLook && idle < spins && shares_core()) {
      idle = may_part() ? spins + kYields : spins;
    } else if (idle < spins) {
      ++idle;
      cpu_pause();
    } else if (deadline.passed()) {
      step = poll_all(poll, true);
      return step == Step::kDone || step == Step::kFailed;
    } else if (idle < spins + kYields) {
      ++idle;
      ++counts->sleeps;
      sched_yield();
      slow = true;
    } else {
      sleep(poll, std::min(deadline.left(), context_->scaled(kTickNs)), &step);
      if (step == Step::kDone || step == Step::kFailed) return true;
      if (step == Step::kProgress) idle = 0;
      if (step == Step::kWaiting) ++counts->sleeps;
      slow = true;
    }
  }
}

// Announces itself, looks once more, then sleeps until the bell rings.  *step
// is what the second look found; it slept only if that was kWaiting.
void Runner::sleep(Poll poll, int64_t ns, Step* step) {
  Bell& own = bell();
  own.sleepers.fetch_add(1);
  uint32_t seen = own.rings.load();
  *step = poll_all(poll, true);
  if (busy()) ns = std::min(ns, first_wake() - now_ns());
  if (*step == Step::kWaiting && &own == &bell()) {
    futex_wait(own.rings, seen, std::max<int64_t>(ns, 1000));
  }
  own.sleepers.fetch_sub(1);
}

void Runner::wake() {
  ring_self();
  if (thread_idle_.load()) {
    work_word_.fetch_add(1);
    futex_wake_all(work_word_);
  }
}

void Runner::progress_loop() {
  pthread_setname_np(pthread_self(), "alq-progress");
  auto poll = [this](bool) {
    return stop_.load() || !busy() ? Step::kDone : Step::kWaiting;
  };
  while (!stop_.load()) {
    if (busy()) {
      wait(Poll(poll), Deadline::after(kTickNs));
      continue;
    }
    // Idle: sleep where peers do not see it, so that they need not wake it.
    uint32_t seen = work_word_.load();
    thread_idle_.store(true);
    if (!busy() && !stop_.load()) futex_wait(work_word_, seen, 10 * kTickNs);
    thread_idle_.store(false);
  }
}

}  // namespace aliquot
