// The names of all kernels, once: for the plan, for the table of the double and
// for the image's tests.  X(name, Args, kind): kind kThread for a kernel whose
// threads never wait for each other, kBlock for one that is written in phases
// (see device.h).
#pragma once

#define ALQ_CUDA_KERNELS(X)                           \
  X(alq_fill, FillArgs, kThread)                      \
  X(alq_copy, CopyArgs, kThread)                      \
  X(alq_cast_f64_f64, CastArgs, kThread)              \
  X(alq_cast_f64_f32, CastArgs, kThread)              \
  X(alq_cast_f64_f16, CastArgs, kThread)              \
  X(alq_cast_f64_bf16, CastArgs, kThread)             \
  X(alq_cast_f32_f64, CastArgs, kThread)              \
  X(alq_cast_f32_f32, CastArgs, kThread)              \
  X(alq_cast_f32_f16, CastArgs, kThread)              \
  X(alq_cast_f32_bf16, CastArgs, kThread)             \
  X(alq_cast_f16_f64, CastArgs, kThread)              \
  X(alq_cast_f16_f32, CastArgs, kThread)              \
  X(alq_cast_f16_f16, CastArgs, kThread)              \
  X(alq_cast_f16_bf16, CastArgs, kThread)             \
  X(alq_cast_bf16_f64, CastArgs, kThread)             \
  X(alq_cast_bf16_f32, CastArgs, kThread)             \
  X(alq_cast_bf16_f16, CastArgs, kThread)             \
  X(alq_cast_bf16_bf16, CastArgs, kThread)            \
  X(alq_cast_within, CastArgs, kBlock)                \
  X(alq_accumulate_f64_f64, AccumulateArgs, kThread)  \
  X(alq_accumulate_f64_f32, AccumulateArgs, kThread)  \
  X(alq_accumulate_f64_f16, AccumulateArgs, kThread)  \
  X(alq_accumulate_f64_bf16, AccumulateArgs, kThread) \
  X(alq_accumulate_f32_f64, AccumulateArgs, kThread)  \
  X(alq_accumulate_f32_f32, AccumulateArgs, kThread)  \
  X(alq_accumulate_f32_f16, AccumulateArgs, kThread)  \
  X(alq_accumulate_f32_bf16, AccumulateArgs, kThread) \
  X(alq_adamw_f32_none, AdamWArgs, kThread)           \
  X(alq_adamw_f32_f16, AdamWArgs, kThread)            \
  X(alq_adamw_f32_bf16, AdamWArgs, kThread)           \
  X(alq_adamw_f16_none, AdamWArgs, kThread)           \
  X(alq_adamw_f16_f16, AdamWArgs, kThread)            \
  X(alq_adamw_f16_bf16, AdamWArgs, kThread)           \
  X(alq_adamw_bf16_none, AdamWArgs, kThread)          \
  X(alq_adamw_bf16_f16, AdamWArgs, kThread)           \
  X(alq_adamw_bf16_bf16, AdamWArgs, kThread)          \
  X(alq_adamw_f64, AdamWArgs, kThread)                \
  X(alq_adamw_any_f32, AdamWArgs, kThread)            \
  X(alq_adamw_any_f64, AdamWArgs, kThread)            \
  X(alq_sgd_f32_none, SgdArgs, kThread)               \
  X(alq_sgd_f32_f16, SgdArgs, kThread)                \
  X(alq_sgd_f32_bf16, SgdArgs, kThread)               \
  X(alq_sgd_f16_none, SgdArgs, kThread)               \
  X(alq_sgd_f16_f16, SgdArgs, kThread)                \
  X(alq_sgd_f16_bf16, SgdArgs, kThread)               \
  X(alq_sgd_bf16_none, SgdArgs, kThread)              \
  X(alq_sgd_bf16_f16, SgdArgs, kThread)               \
  X(alq_sgd_bf16_bf16, SgdArgs, kThread)              \
  X(alq_sgd_f64, SgdArgs, kThread)                    \
  X(alq_sgd_any_f32, SgdArgs, kThread)                \
  X(alq_sgd_any_f64, SgdArgs, kThread)                \
  X(alq_norm_f64, NormArgs, kBlock)                   \
  X(alq_norm_f32, NormArgs, kBlock)                   \
  X(alq_norm_f16, NormArgs, kBlock)                   \
  X(alq_norm_bf16, NormArgs, kBlock)                  \
  X(alq_finite_f64, FiniteArgs, kThread)              \
  X(alq_finite_f32, FiniteArgs, kThread)              \
  X(alq_finite_f16, FiniteArgs, kThread)              \
  X(alq_finite_bf16, FiniteArgs, kThread)             \
  X(alq_stamp, StampArgs, kThread)                    \
  X(alq_rates, RatesArgs, kThread)                    \
  X(alq_share, ShareArgs, kThread)                    \
  X(alq_decide, DecideArgs, kThread)
