// Cost: some comparisons and one division.
//
// The grid is at most as many blocks as the device can hold at once, each
// thread striding over the rest: more would only wait.  Small shards get a
// thread per 16 bytes of their widest type and no more.
#include "kernels/cuda/plan.h"

#include <algorithm>

namespace aliquot::kernels {
namespace {

constexpr int64_t kWarp = 32, kBlock = 256;
// Residency of 256 threads: 8 blocks fill 2048, kernels of more registers hold
// fewer and gain nothing from a longer queue.
constexpr int64_t kLightBlocks = 8, kHeavyBlocks = 4;
constexpr int64_t kPackBytes = 16;

struct Shape {
  int64_t count, widest;      // elements, bytes of the widest one
  int64_t blocks_per_device;  // at most
};

CudaLaunch shaped(const char* kernel, Shape s) {
  const int64_t per_pack = std::max<int64_t>(kPackBytes / s.widest, 1);
  const int64_t packs = s.count / per_pack + 1;
  const int64_t block = std::min((packs + kWarp - 1) / kWarp * kWarp, kBlock);
  const int64_t blocks = (packs + block - 1) / block;
  const int64_t grid = std::clamp<int64_t>(blocks, 1, s.blocks_per_device);
  return {kernel, static_cast<uint32_t>(grid), static_cast<uint32_t>(block), 0};
}

constexpr CudaLaunch kNothing = {nullptr, 0, 0, 0};

// Position in the tables below.
int at(Dtype dtype) { return static_cast<int>(dtype) - ALQ_F64; }
static_assert(ALQ_F32 == ALQ_F64 + 1 && ALQ_F16 == ALQ_F64 + 2 &&
              ALQ_BF16 == ALQ_F64 + 3);

#define ALQ_NAMES(stem) \
  { stem "_f64", stem "_f32", stem "_f16", stem "_bf16" }
constexpr const char* kCast[4][4] = {
    ALQ_NAMES("alq_cast_f64"), ALQ_NAMES("alq_cast_f32"),
    ALQ_NAMES("alq_cast_f16"), ALQ_NAMES("alq_cast_bf16")};
constexpr const char* kAccumulate[2][4] = {ALQ_NAMES("alq_accumulate_f64"),
                                           ALQ_NAMES("alq_accumulate_f32")};
constexpr const char* kNorm[4] = ALQ_NAMES("alq_norm");
constexpr const char* kFinite[4] = ALQ_NAMES("alq_finite");
#undef ALQ_NAMES

// [grad - f32][model: none, f16, bf16]
#define ALQ_NAMES(stem) \
  { stem "_none", stem "_f16", stem "_bf16" }
constexpr const char* kAdamW[3][3] = {ALQ_NAMES("alq_adamw_f32"),
                                      ALQ_NAMES("alq_adamw_f16"),
                                      ALQ_NAMES("alq_adamw_bf16")};
constexpr const char* kSgd[3][3] = {ALQ_NAMES("alq_sgd_f32"),
                                    ALQ_NAMES("alq_sgd_f16"),
                                    ALQ_NAMES("alq_sgd_bf16")};
#undef ALQ_NAMES

CudaLaunch plan(const FillArgs& a, int64_t mp) {
  if (a.count <= 0) return kNothing;
  return shaped("alq_fill", {a.count * a.width, 1, mp * kLightBlocks});
}

CudaLaunch plan(const CopyArgs& a, int64_t mp) {
  if (a.bytes <= 0) return kNothing;
  return shaped("alq_copy", {a.bytes, 1, mp * kLightBlocks});
}

CudaLaunch plan(const CastArgs& a, int64_t mp) {
  if (a.count <= 0 || !cast_supported(a.dst_dtype, a.src_dtype)) {
    return kNothing;
  }
  const int64_t to = dtype_size(a.dst_dtype), from = dtype_size(a.src_dtype);
  if (a.dst == a.src && to < from) {
    return {"alq_cast_within", 1, static_cast<uint32_t>(kBlock), 0};
  }
  return shaped(kCast[at(a.dst_dtype)][at(a.src_dtype)],
                {a.count, std::max(to, from), mp * kLightBlocks});
}

CudaLaunch plan(const AccumulateArgs& a, int64_t mp) {
  if (a.count <= 0 || !accumulate_supported(a.dst_dtype, a.src_dtype)) {
    return kNothing;
  }
  const int64_t widest =
      std::max(dtype_size(a.dst_dtype), dtype_size(a.src_dtype));
  return shaped(kAccumulate[at(a.dst_dtype)][at(a.src_dtype)],
                {a.count, widest, mp * kLightBlocks});
}

struct Optimizer {
  Dtype master, grad, state, model;
  bool has_state, has_model;

  bool supported() const {
    return (master == ALQ_F32 || master == ALQ_F64) && is_float(grad) &&
           (!has_state || is_float(state)) && (!has_model || is_float(model));
  }
  bool state_fits() const { return !has_state || state == master; }
  bool is_half(Dtype d) const { return d == ALQ_F16 || d == ALQ_BF16; }
};

struct OptimizerNames {
  const char* const (*f32)[3];
  const char *f64, *any_f32, *any_f64;
};

CudaLaunch plan_optimizer(const Optimizer& o, const OptimizerNames& names,
                          int64_t count, int64_t mp) {
  if (count <= 0 || !o.supported()) return kNothing;
  const int64_t blocks = mp * kHeavyBlocks;
  if (o.master == ALQ_F64) {
    const bool direct = o.state_fits() && o.grad == ALQ_F64 && !o.has_model;
    return shaped(direct ? names.f64 : names.any_f64, {count, 8, blocks});
  }
  const bool direct = o.state_fits() && o.grad != ALQ_F64 &&
                      (!o.has_model || o.is_half(o.model));
  if (!direct) return shaped(names.any_f32, {count, 8, blocks});
  const int model = o.has_model ? o.model - ALQ_F16 + 1 : 0;
  return shaped(names.f32[o.grad - ALQ_F32][model], {count, 4, blocks});
}

CudaLaunch plan(const AdamWArgs& a, int64_t mp) {
  const Optimizer o = {a.master_dtype, a.grad_dtype, a.state_dtype,
                       a.model_dtype,  true,         a.model != nullptr};
  return plan_optimizer(
      o, {kAdamW, "alq_adamw_f64", "alq_adamw_any_f32", "alq_adamw_any_f64"},
      a.count, mp);
}

CudaLaunch plan(const SgdArgs& a, int64_t mp) {
  const Optimizer o = {a.master_dtype,
                       a.grad_dtype,
                       a.state_dtype,
                       a.model_dtype,
                       a.momentum_buffer != nullptr,
                       a.model != nullptr};
  return plan_optimizer(
      o, {kSgd, "alq_sgd_f64", "alq_sgd_any_f32", "alq_sgd_any_f64"}, a.count,
      mp);
}

// Launched for no elements too: it makes zeroed bins the empty ones, as on CPU.
CudaLaunch plan(const NormArgs& a, int64_t mp) {
  if (!is_float(a.dtype)) return kNothing;
  return shaped(kNorm[at(a.dtype)], {std::max<int64_t>(a.count, 0),
                                     dtype_size(a.dtype), mp * kHeavyBlocks});
}

CudaLaunch plan(const FiniteArgs& a, int64_t mp) {
  if (a.count <= 0 || !is_float(a.dtype)) return kNothing;
  return shaped(kFinite[at(a.dtype)],
                {a.count, dtype_size(a.dtype), mp * kLightBlocks});
}

template <typename Args>
CudaLaunch plan_as(const void* args, int64_t mp) {
  return plan(*static_cast<const Args*>(args), mp);
}

}  // namespace

CudaLaunch cuda_plan(OpCode op, const void* args, int32_t multiprocessors) {
  const int64_t mp = std::max(multiprocessors, 1);
  switch (op) {
    case OpCode::kFill: return plan_as<FillArgs>(args, mp);
    case OpCode::kCopy: return plan_as<CopyArgs>(args, mp);
    case OpCode::kCast: return plan_as<CastArgs>(args, mp);
    case OpCode::kAccumulate: return plan_as<AccumulateArgs>(args, mp);
    case OpCode::kAdamW: return plan_as<AdamWArgs>(args, mp);
    case OpCode::kSgd: return plan_as<SgdArgs>(args, mp);
    case OpCode::kNorm: return plan_as<NormArgs>(args, mp);
    case OpCode::kFinite: return plan_as<FiniteArgs>(args, mp);
    case OpCode::kStamp: return {"alq_stamp", 1, 1, 0};
    case OpCode::kRates: return {"alq_rates", 1, 1, 0};
    case OpCode::kShare: return {"alq_share", 1, 1, 0};
    case OpCode::kDecide: return {"alq_decide", 1, 1, 0};
  }
  return kNothing;
}

}  // namespace aliquot::kernels
