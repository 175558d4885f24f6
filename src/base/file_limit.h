// Files that would grow beyond RLIMIT_FSIZE: the call fails, and that is all.
// The signal that comes with it would by default end the host's process.
#pragma once

#include <signal.h>
#include <time.h>

namespace aliquot {

class QuietFileLimit {
 public:
  QuietFileLimit() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGXFSZ);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &set_, &old_);
  }
  ~QuietFileLimit() {
    const timespec none = {};
    // One that the host has blocked and that came before is the host's.
    if (!was_pending_) sigtimedwait(&set_, nullptr, &none);
    pthread_sigmask(SIG_SETMASK, &old_, nullptr);
  }
  QuietFileLimit(const QuietFileLimit&) = delete;
  QuietFileLimit& operator=(const QuietFileLimit&) = delete;

 private:
  sigset_t set_, old_;
  bool was_pending_ = false;
};

}  // namespace aliquot
