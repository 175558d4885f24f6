#include "base/written_once.h"

#include <sched.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/process.h"

namespace aliquot {
namespace {

constexpr int64_t kStoppedNs = 1'000'000'000;
constexpr int kYields = 100;

bool ended(int32_t pid) {
  return process_state(pid, process_info(pid).start_time) ==
         ProcessState::kEnded;
}

}  // namespace

bool WrittenOnce::begin() {
  uint32_t none = 0;
  return word_.compare_exchange_strong(
      none, kWriting | static_cast<uint32_t>(getpid()));
}

int32_t WrittenOnce::writer() const {
  const uint32_t word = word_.load();
  return (word & kWriting) != 0 ? static_cast<int32_t>(word & ~kWriting) : 0;
}

WrittenOnce::State WrittenOnce::state() const {
  const Deadline until = Deadline::after(kStoppedNs);
  for (int turn = 0; writer() != 0; ++turn) {
    if (turn < kYields) {
      sched_yield();
      continue;
    }
    // Before it ended it may have come to the end.
    if (ended(writer()) || until.passed()) break;
    usleep(100);
  }
  if (writer() != 0) return State::kUnfinished;
  return begun() ? State::kWhole : State::kNot;
}

}  // namespace aliquot
