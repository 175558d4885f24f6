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

#include "comm/mem/join.h"
#include "comm/mem/poison.h"

namespace aliquot::mem {
namespace {

// Where pidfds are refused, ends of processes are looked for this often.
constexpr int kFallbackMs = 100;

class Watchdog {
 public:
  void add(GroupCore* core) {
    if (core->one_process) return;
    std::lock_guard lock(mutex_);
    cores_.push_back(core);
    for (int32_t q = 0; q < core->size; ++q) {
      const Peer& peer =
          core->world->peers[static_cast<size_t>(core->world_rank(q))];
      if (peer.pid != getpid()) watch(peer);
    }
    if (!thread_.joinable()) start();
    wake();
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

  void start() {
    event_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    BlockSignals block;
    thread_ = std::thread(
        [this, mine = generation_, fd = event_fd_] { loop(mine, fd); });
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
      int timeout = -1;
      {
        std::lock_guard lock(mutex_);
        if (generation_ != generation) break;
        look();
        fds.assign(1, {event_fd, POLLIN, 0});
        for (const Watch& watch : watches_) {
          if (watch.dead) continue;
          if (watch.fd >= 0) fds.push_back({watch.fd, POLLIN, 0});
          if (watch.fd < 0) timeout = kFallbackMs;
        }
      }
      poll(fds.data(), fds.size(), timeout);
      uint64_t count = 0;
      if (read(event_fd, &count, sizeof count) < 0) continue;
    }
    close(event_fd);
  }

  static bool ended(const Watch& watch) {
    if (process_start_time(watch.peer.pid) != watch.peer.start_time) {
      return true;  // gone, and perhaps replaced
    }
    if (watch.fd < 0) return false;
    pollfd fd{watch.fd, POLLIN, 0};
    return poll(&fd, 1, 0) == 1;
  }

  // Poisons the groups of processes that have ended; forgets processes that no
  // group needs.
  void look() {
    for (Watch& watch : watches_) {
      watch.dead = watch.dead || ended(watch);
      bool used = false;
      for (GroupCore* core : cores_) {
        for (int32_t q = 0; q < core->size; ++q) {
          if (core->pid(q) != watch.peer.pid) continue;
          used = true;
          if (watch.dead) report(*core, q);
        }
      }
      if (!used) {
        if (watch.fd >= 0) close(watch.fd);
        watch.peer.pid = 0;
      }
    }
    std::erase_if(watches_, [](const Watch& w) { return w.peer.pid == 0; });
  }

  static void report(const GroupCore& core, int32_t q) {
    // Who closed or left in order is found by those who wait for it.
    MemberState state = core.state(q);
    if (state == kClosed || state == kLeft) return;
    poison(core, ALQ_PEER_FAILED, core.world_rank(q),
           fmt::format("rank {} (process {}) died or exited without closing "
                       "group \"{}\"; restart the job",
                       core.world_rank(q), core.pid(q), core.name));
  }

  std::mutex mutex_;
  std::vector<GroupCore*> cores_;
  std::vector<Watch> watches_;
  std::thread thread_;
  uint64_t generation_ = 0;  // a thread ends when it changes
  int event_fd_ = -1;        // of the present thread, which closes it
};

// Never destroyed: groups may outlive static destructors.
Watchdog& watchdog() {
  static auto* instance = new Watchdog;
  return *instance;
}

}  // namespace

void watchdog_add(GroupCore* core) { watchdog().add(core); }
void watchdog_remove(GroupCore* core) { watchdog().remove(core); }

}  // namespace aliquot::mem
