// Does a progress thread pay?  Measured: how much of a copy that the thread
// makes disappears under computing of the caller.
//
// All ranks of a host measure at once, since they would compute at once.
// Cost: about 30 ms and 16 MiB for its time, once per context.
#pragma once

#include "device/cpu/cpu_device.h"

namespace aliquot {

// Seconds of computing alone, of a copy alone, of both together.
struct OverlapTimes {
  double compute = 0, copy = 0, both = 0;
  // The part of the shorter one that the other hides, from 0 to 1.
  double hidden() const;
};

// Best of a few tries.  The device's progress thread must be running.
Result<OverlapTimes> measure_overlap(CpuDevice& device, Deadline deadline);

// From this hidden part on the thread is kept.
constexpr double kOverlapPays = 0.5;

}  // namespace aliquot
