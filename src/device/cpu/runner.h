// Runner: runs the queues of one rank.
//
// There is no thread behind a CPU stream.  Whoever waits for anything runs all
// queues of its rank meanwhile: otherwise a rank waiting for one operation
// would withhold another one that its peers wait for.  A progress thread, if
// asked for, does the same while the caller computes.
//
// Waiting: up to 200 pauses (none where ranks outnumber cores), a few yields,
// then sleep on the rank's bell.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/context.h"
#include "device/cpu/bell.h"
#include "device/cpu/fork.h"
#include "device/cpu/queue.h"

namespace aliquot {

// System calls made by a wait; yields and sleeps are both `sleeps`.
struct WaitCounts {
  int64_t sleeps = 0;
};

// A reference to a callable Step(bool slow).
class Poll {
 public:
  template <typename F>
  explicit Poll(F& f)
      : object_(&f), call_([](void* object, bool slow) {
          return (*static_cast<F*>(object))(slow);
        }) {}
  Step operator()(bool slow) const { return call_(object_, slow); }

 private:
  void* object_;
  Step (*call_)(void*, bool);
};

class Runner {
 public:
  Runner(std::shared_ptr<Context> context, int32_t progress);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  Context& context() const { return *context_; }

  // From now on sleep on this bell, which peers ring; owner keeps it mapped.
  // ranks: how many share the host's cores.
  void use_bell(Bell* bell, std::shared_ptr<void> owner, int32_t ranks);
  // Wakes all threads of this rank that sleep.  Returns system calls made.
  int ring_self() { return ring(*bell_.load()); }

  std::shared_ptr<Queue> create_queue(std::string name);
  // The queue at this address, or null.
  std::shared_ptr<Queue> find_queue(const void* address);

  // Calls poll, and runs all queues, until poll says kDone or kFailed (true) or
  // the deadline passes (false).
  bool wait(Poll poll, Deadline deadline, WaitCounts* counts = nullptr);

  // Runs every queue a little; true if any moved.
  bool run_queues(bool slow);
  bool busy() const { return pending_.load() != 0; }
  // Starts or ends the progress thread.
  void set_progress_thread(bool on);
  bool has_progress_thread() const { return has_thread_.load(); }

  // For Queue.
  void add_pending() { pending_.fetch_add(1); }
  void remove_pending() { pending_.fetch_sub(1); }
  void wake();

 private:
  using Queues = std::vector<std::shared_ptr<Queue>>;

  void progress_loop();
  void end_progress_thread();
  void sleep(Poll poll, int64_t ns, Step* step);
  Step poll_all(Poll poll, bool slow);
  std::shared_ptr<const Queues> queues();
  int64_t first_wake();

  const std::shared_ptr<Context> context_;
  Bell own_bell_;
  std::atomic<Bell*> bell_{&own_bell_};
  std::vector<std::shared_ptr<void>> bell_owners_;
  std::atomic<int> spins_{200};

  std::mutex queues_mutex_;
  std::shared_ptr<const Queues> queues_ = std::make_shared<Queues>();
  std::atomic<int64_t> pending_{0};

  const uint64_t stamp_ = fork_stamp();
  std::mutex thread_mutex_;  // starting and ending it
  std::thread thread_;
  std::atomic<bool> has_thread_{false};
  std::atomic<bool> stop_{false};
  std::atomic<uint32_t> work_word_{0};  // the progress thread sleeps here idle
  std::atomic<bool> thread_idle_{false};
};

// Cores this process may run on.
int online_cores();

}  // namespace aliquot
