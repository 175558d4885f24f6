#include "device/cpu/fork.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cstring>

namespace aliquot {
namespace {

std::atomic<uint64_t> stamp{1};
void in_child() { stamp.fetch_add(1); }

}  // namespace

uint64_t fork_stamp() {
  static const bool registered = [] {
    pthread_atfork(nullptr, nullptr, in_child);
    return true;
  }();
  (void)registered;
  return stamp.load(std::memory_order_relaxed);
}

BlockSignals::BlockSignals() {
  static_assert(sizeof(sigset_t) <= sizeof old_);
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  std::memcpy(old_, &old, sizeof old);
}

BlockSignals::~BlockSignals() {
  sigset_t old;
  std::memcpy(&old, old_, sizeof old);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

}  // namespace aliquot
