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

bool WrittenOnce::begin(int32_t rank) {
  uint32_t none = 0;
  return word_.compare_exchange_strong(
      none, kWriting | static_cast<uint32_t>(rank) << kPidBits |
                static_cast<uint32_t>(getpid()));
}

void WrittenOnce::end() {
  uint32_t word = word_.load();
  if ((word & kWriting) != 0) word_.compare_exchange_strong(word, kEnded);
}

WrittenOnce::Writer WrittenOnce::writer() const {
  const uint32_t word = word_.load();
  if ((word & (kWriting | kGivenUp)) == 0) return {};
  const uint32_t who = word & ~(kWriting | kGivenUp);
  return {static_cast<int32_t>(who >> kPidBits),
          static_cast<int32_t>(who & ((uint32_t{1} << kPidBits) - 1))};
}

Status WrittenOnce::unfinished(const std::string& what) const {
  const Writer who = writer();
  return make_error(ALQ_PEER_FAILED,
                    "rank {} (process {}) ended, or was stopped, while it "
                    "wrote down {}",
                    who.rank, who.pid, what)
      .with_rank(who.rank);
}

WrittenOnce::State WrittenOnce::state() {
  const Deadline until = Deadline::after(kStoppedNs);
  uint32_t word = word_.load();
  for (int turn = 0; (word & kWriting) != 0; word = word_.load(), ++turn) {
    if (turn < kYields) {
      sched_yield();
      continue;
    }
    if (ended(writer().pid) || until.passed()) {
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
