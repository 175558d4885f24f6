// The decision of a step: one thread's work, see arithmetic/step.h.
#include "kernels/arithmetic/step.h"
#include "kernels/cuda/device.h"

namespace aliquot::kernels {

ALQ_KERNEL(alq_rates, RatesArgs) {
  if (grid_thread() == 0) step_rates(args);
}
ALQ_KERNEL(alq_share, ShareArgs) {
  if (grid_thread() == 0) step_share(args);
}
ALQ_KERNEL(alq_decide, DecideArgs) {
  if (grid_thread() == 0) step_decide(args);
}

}  // namespace aliquot::kernels
