// Where staging private memory stops to pay: measured once per world.
//
// Private memory of another process is either staged (copied twice, through
// windows in cached shared memory) or read in place (copied once, by a system
// call that pins its pages).  Which is faster up to which size depends on the
// processor, the kernel and its pages, so two ranks try both on fresh data, for
// sums and for copies, on two sizes, and fit a line through each: staging is
// used up to where the lines cross.  They also try whether windows are better
// filled past the caches (kernels/cpu/copy_cold.cc).
//
// The result lies in the world's control block and is a first answer: trials
// follow the machine and the buffers (way_trial.h).
// Cost: a few milliseconds when the world is made, of rank 0 and one other, and
// not many more on a busy machine, which gets fixed limits instead.
#pragma once

#include "comm/mem/core.h"

namespace aliquot::mem {

// Bytes that one rank has for another, up to which they are staged.
struct StageLimits {
  int64_t sums = 0, copies = 0;
  bool streams = false;  // what peers read is written past the caches
};

// The two lines, in seconds, at two sizes: staged and read.
struct Trials {
  int64_t small_bytes = 0, large_bytes = 0;
  double staged_small = 0, staged_large = 0, read_small = 0, read_large = 0;
};
// Where they cross, within bounds.
int64_t crossing(const Trials& trials);

// Measures, or takes the hints of rank 0; collective over the world.  Nothing
// to do where all ranks are threads of one process.
void calibrate(GroupCore& core);

StageLimits stage_limits(const World& world);

}  // namespace aliquot::mem
