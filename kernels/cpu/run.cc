// The table of operations on the CPU.
#include "kernels/arithmetic/step.h"
#include "kernels/cpu/cpu.h"

namespace aliquot::kernels {

namespace {

void run_copy(const CopyArgs& args) {
  if (args.cold == 0) return copy_cpu(args);
  copy_cold_cpu(args);
  flush_cold_cpu();
}

}  // namespace

void run_cpu(OpCode op, const void* args) {
  switch (op) {
    case OpCode::kFill: return fill_cpu(*static_cast<const FillArgs*>(args));
    case OpCode::kCopy: return run_copy(*static_cast<const CopyArgs*>(args));
    case OpCode::kCast: return cast_cpu(*static_cast<const CastArgs*>(args));
    case OpCode::kAccumulate:
      return accumulate_cpu(*static_cast<const AccumulateArgs*>(args));
    case OpCode::kAdamW: return adamw_cpu(*static_cast<const AdamWArgs*>(args));
    case OpCode::kSgd: return sgd_cpu(*static_cast<const SgdArgs*>(args));
    case OpCode::kNorm: return norm_cpu(*static_cast<const NormArgs*>(args));
    case OpCode::kFinite:
      return finite_cpu(*static_cast<const FiniteArgs*>(args));
    case OpCode::kStamp: return stamp_cpu(*static_cast<const StampArgs*>(args));
    case OpCode::kRates:
      return step_rates(*static_cast<const RatesArgs*>(args));
    case OpCode::kShare:
      return step_share(*static_cast<const ShareArgs*>(args));
    case OpCode::kDecide:
      return step_decide(*static_cast<const DecideArgs*>(args));
  }
}

}  // namespace aliquot::kernels
