// Runner: runs the queues of one rank.
//
// There is no thread behind a CPU stream.  Whoever waits for anything runs all
// queues of its rank meanwhile: otherwise a rank waiting for one operation
// would withhold another one that its peers wait for.  A progress thread, if
// asked for, does the same while the caller computes.
//
// Waiting: up to 200 pauses (none where ranks outnumber cores), a few yields,
// then sleep on the rank's bell.  A rank that shares its core with another,
// though there is one for each, gives it up at once; now and then by a sleep,
// for who is woken is put on an idle core, and who yields is not.
#pragma once

#include <atomic>
#include <deque>
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

  // From now on sleep on bell number `rank` of these, one for each of the ranks
  // that share the host's cores; owner keeps them mapped.
  void use_bells(Bell* bells, int32_t rank, int32_t ranks,
                 std::shared_ptr<void> owner);
  // Wakes all threads of this rank that sleep.  Returns system calls made.
  int ring_self() { return ring(bell()); }

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
  struct Bells {
    Bell* all;
    int32_t rank, ranks;
    std::shared_ptr<void> owner;
  };

  Bell& bell() const {
    const Bells* bells = bells_.load();
    return bells->all[bells->rank];
  }
  bool shares_core() const;
  bool may_part();
  void progress_loop();
  void end_progress_thread();
  void sleep(Poll poll, int64_t ns, Step* step);
  Step poll_all(Poll poll, bool slow);
  std::shared_ptr<const Queues> queues();
  int64_t first_wake();

  const std::shared_ptr<Context> context_;
  Bell own_bell_;
  std::deque<Bells> used_{{&own_bell_, 0, 1, nullptr}};
  std::atomic<const Bells*> bells_{&used_.front()};
  std::atomic<int> spins_{200};
  std::atomic<int64_t> parted_{0};  // coarse_ns() of the last sleep to part

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
