// The plan: every kernel it names exists, every kernel is named, and the grid
// follows the amount of work.
#include <set>
#include <string>

#include "kernels/cuda/kernels.h"
#include "launch.h"

namespace aliquot::kernels {
namespace {

std::set<std::string> named;

template <typename Args>
CudaLaunch plan(OpCode op, const Args& args, int32_t multiprocessors = 4) {
  const CudaLaunch launch = cuda_plan(op, &args, multiprocessors);
  if (launch.kernel != nullptr) {
    named.insert(launch.kernel);
    BOOST_TEST(cuda_host_kernel(launch.kernel) != nullptr);
    BOOST_TEST(launch.grid >= 1);
    BOOST_TEST(launch.block >= 1);
    BOOST_TEST(launch.block <= 256);
  }
  return launch;
}

void plan_optimizers(Dtype master, Dtype grad, Dtype state, Dtype model) {
  char memory[8];
  for (bool with_model : {false, true}) {
    AdamWArgs a = {};
    a.model = with_model ? memory : nullptr;
    a.count = 100;
    a.master_dtype = master;
    a.grad_dtype = grad;
    a.state_dtype = state;
    a.model_dtype = model;
    plan(OpCode::kAdamW, a);
    SgdArgs s = {};
    s.model = a.model;
    s.momentum_buffer = memory;
    s.count = 100;
    s.master_dtype = master;
    s.grad_dtype = grad;
    s.state_dtype = state;
    s.model_dtype = model;
    plan(OpCode::kSgd, s);
  }
}

BOOST_AUTO_TEST_CASE(plan_names_every_kernel) {
  named.clear();
  char memory[64];
  plan(OpCode::kFill, FillArgs{memory, 3, 0, 4});
  plan(OpCode::kCopy, CopyArgs{memory, memory + 8, 4});
  plan(OpCode::kCast, CastArgs{memory, memory, 4, ALQ_F16, ALQ_F32, 1.0});
  for (Dtype a : kFloatDtypes) {
    for (Dtype b : kFloatDtypes) {
      plan(OpCode::kCast, CastArgs{memory, memory + 8, 4, a, b, 1.0});
      plan(OpCode::kAccumulate, AccumulateArgs{memory, memory + 8, 4, a, b});
      for (Dtype c : kFloatDtypes) {
        plan_optimizers(ALQ_F32, a, b, c);
        plan_optimizers(ALQ_F64, a, b, c);
      }
    }
    plan(OpCode::kNorm, NormArgs{nullptr, memory, 4, a, 0, 0});
    plan(OpCode::kFinite, FiniteArgs{nullptr, memory, 4, a, 0, 0});
  }
  plan(OpCode::kStamp, StampArgs{nullptr, 0});
  plan(OpCode::kRates, RatesArgs{});
  plan(OpCode::kShare, ShareArgs{});
  plan(OpCode::kDecide, DecideArgs{});
#define ALQ_COUNT(name, Args, kind) BOOST_TEST(named.count(#name) == 1, #name);
  ALQ_CUDA_KERNELS(ALQ_COUNT)
#undef ALQ_COUNT
  BOOST_TEST(cuda_host_kernel("alq_none") == nullptr);
}

BOOST_AUTO_TEST_CASE(plan_follows_the_work) {
  char memory[64];
  CastArgs a = {memory, memory + 8, 0, ALQ_BF16, ALQ_F32, 1.0};
  BOOST_TEST(plan(OpCode::kCast, a).kernel == nullptr);
  a.count = -1;
  BOOST_TEST(plan(OpCode::kCast, a).kernel == nullptr);
  // 4 elements of f32 per thread, whole warps.
  a.count = 16;
  BOOST_TEST(plan(OpCode::kCast, a).grid == 1);
  BOOST_TEST(plan(OpCode::kCast, a).block == 32);
  a.count = 4 * 256 * 3;
  BOOST_TEST(plan(OpCode::kCast, a).block == 256);
  BOOST_TEST(plan(OpCode::kCast, a).grid == 4);
  // No more than the device holds.
  a.count = int64_t{1} << 40;
  BOOST_TEST(plan(OpCode::kCast, a, 4).grid == 32);
  BOOST_TEST(plan(OpCode::kCast, a, 132).grid == 1056);
  BOOST_TEST(plan(OpCode::kCast, a, 0).grid == 8);
}

}  // namespace
}  // namespace aliquot::kernels
