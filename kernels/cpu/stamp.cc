// The clock, read when a stream gets here: for traces.
#include "base/clock.h"
#include "kernels/cpu/cpu.h"

namespace aliquot::kernels {

void stamp_cpu(const StampArgs& args) { *args.at = now_ns() + args.offset; }

}  // namespace aliquot::kernels
