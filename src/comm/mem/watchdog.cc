#include "comm/mem/watchdog.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/process.h"
#include "comm/mem/poison.h"
#include "comm/mem/whereabouts.h"
#include "device/cpu/thread.h"

namespace aliquot::mem {
namespace {

// Where pidfds are refused, ends of processes are looked for this often.
constexpr int64_t kFallbackNs = 100'000'000;
// How often stopped processes are looked for.
constexpr int64_t kStopTickNs = 500'000'000;

class Watchdog {
 public:
  bool add(GroupCore* core) {
    if (core->one_process) return true;
    std::lock_guard lock(mutex_);
    if (!thread_.joinable() && !start()) return false;
    cores_.push_back(core);
    for (int32_t q = 0; q < core->size; ++q) {
      const Peer& peer =
          core->world->peers[static_cast<size_t>(core->world_rank(q))];
      if (peer.pid != getpid()) watch(peer);
    }
    wake();
    return true;
  }

  void remove(GroupCore* core) {
    if (core->one_process) return;
    std::thread ended;
    {
      std::lock_guard lock(mutex_);
      std::erase(cores_, core);
      if (!cores_.empty() || !thread_.joinable()) return;
      ++generation_;
      wake();
      ended = std::move(thread_);
      for (const Watch& watch : watches_) {
        if (watch.fd >= 0) close(watch.fd);
      }
      watches_.clear();
    }
    ended.join();
  }

 private:
  struct Watch {
    Peer peer;
    int fd = -1;  // pidfd, or -1: look at /proc
    bool dead = false;
    bool stopped = false;
    int64_t stopped_ns = 0;  // of this process's running time
  };

  void watch(const Peer& peer) {
    for (const Watch& known : watches_) {
      if (known.peer.pid == peer.pid &&
          known.peer.start_time == peer.start_time) {
        return;
      }
    }
    Watch watch{peer};
    watch.fd = static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0));
    watches_.push_back(watch);
  }

  bool start() {
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!start_thread(&thread_,
                      [this, mine = generation_, fd] { loop(mine, fd); })) {
      if (fd >= 0) close(fd);
      return false;
    }
    event_fd_ = fd;
    return true;
  }

  void wake() {
    uint64_t one = 1;
    // Fails only when it is already set.
    if (write(event_fd_, &one, sizeof one) < 0) return;
  }

  void loop(uint64_t generation, int event_fd) {
    pthread_setname_np(pthread_self(), "alq-watchdog");
    std::vector<pollfd> fds;
    for (;;) {
      int timeout = 0;
      {
        std::lock_guard lock(mutex_);
        if (generation_ != generation) break;
        look();
        int64_t ns = scaled(kStopTickNs);
        fds.assign(1, {event_fd, POLLIN, 0});
        for (const Watch& watch : watches_) {
          if (watch.dead) continue;
          if (watch.fd >= 0) fds.push_back({watch.fd, POLLIN, 0});
          if (watch.fd < 0) ns = std::min(ns, kFallbackNs);
          int64_t left = scaled(kStopLimitNs) - watch.stopped_ns;
          if (watch.stopped && left > 0) ns = std::min(ns, left);
        }
        timeout = static_cast<int>(ns / 1'000'000) + 1;
      }
      poll(fds.data(), fds.size(), timeout);
      uint64_t count = 0;
      if (read(event_fd, &count, sizeof count) < 0) continue;
    }
    if (event_fd >= 0) close(event_fd);
  }

  // The shortest that any group wants of this detector constant.
  int64_t scaled(int64_t ns) const {
    int64_t least = ns;
    for (const GroupCore* core : cores_) {
      least = std::min(least, core->world->context->scaled(ns));
    }
    return least;
  }

  // Also follows how long it is stopped (a traced one is not: that is somebody
  // at a debugger).
  static bool ended(Watch& watch, int64_t ran_ns) {
    ProcessState state = process_state(watch.peer.pid, watch.peer.start_time);
    if (state == ProcessState::kEnded) return true;
    const bool before = watch.stopped;
    watch.stopped = state == ProcessState::kStopped;
    watch.stopped_ns = before && watch.stopped ? watch.stopped_ns + ran_ns : 0;
    if (watch.fd < 0) return false;
    pollfd fd{watch.fd, POLLIN, 0};
    return poll(&fd, 1, 0) == 1;
  }

  // Poisons the groups of processes that have ended; forgets processes that no
  // group needs.
  void look() {
    // Where all of a job is stopped for a while, this process did not look for
    // longer than it sleeps: nothing can be said of that time.
    const int64_t now = now_ns();
    const int64_t ran_ns = std::min(now - looked_, 2 * scaled(kStopTickNs));
    looked_ = now;
    for (Watch& watch : watches_) {
      watch.dead = watch.dead || ended(watch, ran_ns);
      bool used = false;
      for (GroupCore* core : cores_) {
        for (int32_t q = 0; q < core->size; ++q) {
          if (core->pid(q) != watch.peer.pid) continue;
          used = true;
          if (watch.dead) report_end(*core, q);
          if (watch.stopped) report_stop(*core, q, watch);
        }
      }
      if (!used) {
        if (watch.fd >= 0) close(watch.fd);
        watch.peer.pid = 0;
      }
    }
    std::erase_if(watches_, [](const Watch& w) { return w.peer.pid == 0; });
  }

  static void report_stop(const GroupCore& core, int32_t q,
                          const Watch& watch) {
    const int64_t ns = watch.stopped_ns;
    if (ns < core.world->context->scaled(kStopLimitNs)) return;
    poison(
        core, ALQ_PEER_FAILED, core.world_rank(q),
        fmt::format("rank {} (process {}) has been stopped for {} ms (a stop "
                    "signal), at most {} ms are waited for it, {}{}; end it",
                    core.world_rank(q), core.pid(q), ns / 1'000'000,
                    core.world->context->scaled(kStopLimitNs) / 1'000'000,
                    last_seen(core, core.world_rank(q)), last_call(core, q)));
  }

  static void report_end(const GroupCore& core, int32_t q) {
    // Who closed or left in order is found by those who wait for it.
    MemberState state = core.state(q);
    if (state == kClosed || state == kLeft) return;
    poison(
        core, ALQ_PEER_FAILED, core.world_rank(q),
        fmt::format("rank {} (process {}) died or exited without closing "
                    "group \"{}\", {}{}; restart the job or shrink the "
                    "group",
                    core.world_rank(q), core.pid(q), core.name,
                    last_seen(core, core.world_rank(q)), last_call(core, q)));
  }

  std::mutex mutex_;
  std::vector<GroupCore*> cores_;
  std::vector<Watch> watches_;
  std::thread thread_;
  int64_t looked_ = 0;
  uint64_t generation_ = 0;  // a thread ends when it changes
  int event_fd_ = -1;        // of the present thread, which closes it
};

// Never destroyed: groups may outlive static destructors.
Watchdog& watchdog() {
  static auto* instance = new Watchdog;
  return *instance;
}

}  // namespace

bool process_ended(const Peer& peer) {
  auto fd = static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0));
  bool ended = false;
  if (fd >= 0) {
    pollfd end{fd, POLLIN, 0};
    ended = poll(&end, 1, 0) == 1;
    close(fd);
  }
  return ended ||
         process_state(peer.pid, peer.start_time) == ProcessState::kEnded;
}

bool watchdog_add(GroupCore* core) { return watchdog().add(core); }
void watchdog_remove(GroupCore* core) { watchdog().remove(core); }

}  // namespace aliquot::mem
