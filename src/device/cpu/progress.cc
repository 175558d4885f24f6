// When a rank has a progress thread.
#include "device/cpu/overlap.h"

namespace aliquot {

Result<Progress> CpuDevice::set_progress(int32_t want, Deadline deadline) {
  if (want == ALQ_PROGRESS_AUTO) {
    if (progress_at_open_ != ALQ_PROGRESS_AUTO) {
      return Progress{progress_at_open_ == ALQ_PROGRESS_ON, -1, 0,
                      "chosen when the context was opened"};
    }
    std::lock_guard lock(decided_mutex_);
    if (!decided_.has_value()) {
      ALQ_ASSIGN(decided_, decide_progress(deadline));
    }
    runner_->set_progress_thread(decided_->on);
    return *decided_;
  }
  if (progress_at_open_ != ALQ_PROGRESS_AUTO && progress_at_open_ != want) {
    return make_error(ALQ_FAILED_PRECONDITION,
                      "progress {} asked for, but the context was opened with "
                      "progress {}; open it with AUTO (0) or leave this to it",
                      want, progress_at_open_);
  }
  runner_->set_progress_thread(want == ALQ_PROGRESS_ON);
  return Progress{want == ALQ_PROGRESS_ON, -1, 0, "asked for"};
}

Result<Progress> CpuDevice::decide_progress(Deadline deadline) {
  if (context_->size == 1) return Progress{false, -1, 0, "there is one rank"};
  if (context_->throttle_bytes_per_s > 0) {
    return Progress{true, -1, 0, "the wire is slower than memory"};
  }
  if (online_cores() <= context_->local_size) {
    return Progress{false, -1, 0, "every core has a rank"};
  }
  runner_->set_progress_thread(true);
  ALQ_ASSIGN(OverlapTimes times, measure_overlap(*this, deadline));
  double hidden = times.hidden();
  return Progress{hidden >= kOverlapPays, hidden, kOverlapPays, "measured"};
}

}  // namespace aliquot
