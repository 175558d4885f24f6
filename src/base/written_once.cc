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

void WrittenOnce::end() {
  uint32_t mine = kWriting | static_cast<uint32_t>(getpid());
  word_.compare_exchange_strong(mine, kEnded);
}

int32_t WrittenOnce::writer() const {
  const uint32_t word = word_.load();
  const bool unfinished = (word & (kWriting | kGivenUp)) != 0;
  return unfinished ? static_cast<int32_t>(word & ~(kWriting | kGivenUp)) : 0;
}

WrittenOnce::State WrittenOnce::state() {
  const Deadline until = Deadline::after(kStoppedNs);
  uint32_t word = word_.load();
  for (int turn = 0; (word & kWriting) != 0; word = word_.load(), ++turn) {
    if (turn < kYields) {
      sched_yield();
      continue;
    }
    if (ended(writer()) || until.passed()) {
      // Before it ended it may have come to the end.
      word_.compare_exchange_strong(word, (word & ~kWriting) | kGivenUp);
      continue;
    }
    usleep(100);
  }
  if (word == 0) return State::kNot;
  return word == kEnded ? State::kWhole : State::kUnfinished;
}

}  // namespace aliquot
