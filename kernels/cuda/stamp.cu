// The device's clock, read when a stream gets here: for traces.
#include "kernels/cuda/device.h"

namespace aliquot::kernels {

ALQ_KERNEL(alq_stamp, StampArgs) {
  if (grid_thread() == 0) *args.at = device_clock() + args.offset;
}

}  // namespace aliquot::kernels
