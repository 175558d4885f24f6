// The one table of element-wise operations that the library runs on memory.
// Each has a plain argument struct; a device runs it on a stream (on CPU: the
// functions of kernels/cpu, on CUDA: one launch each).  Arguments are copied at
// launch.  Arithmetic is defined here and is the same on every target:
//   half types are read into f32 and rounded to nearest even once, on store;
//   no fused multiply-add unless the operation says so; denormals are kept;
//   a NaN that an operation computes is the canonical one (positive, quiet, no
//   payload), one that is only moved or cast at scale 1 keeps its payload.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace aliquot::kernels {

enum class OpCode : int32_t {
  kFill,
  kCopy,
  kCast,
  kAccumulate,
  kAdamW,
  kSgd,
  kNorm,
  kFinite,
  kStamp,
  kRates,
  kShare,
  kDecide,
};

// dst[i] = the pattern, `width` bytes (1, 2, 4 or 8) of `bits`, little endian.
struct FillArgs {
  void* dst;
  int64_t count;
  uint64_t bits;
  int64_t width;
};

// cold: dst is not read soon, or elsewhere: it need not pass the caches.
struct CopyArgs {
  void* dst;
  const void* src;
  int64_t bytes;
  int64_t cold = 0;
};

// dst[i] = src[i] * scale, each in its dtype; scale 1 is exact.  The product is
// formed in f32 unless either side is f64.  dst may equal src if it is no
// wider.
struct CastArgs {
  void* dst;
  const void* src;
  int64_t count;
  Dtype dst_dtype, src_dtype;
  double scale;
};

// dst[i] = dst[i] + src[i] in dst's dtype: f32 or f64; src converted first.
struct AccumulateArgs {
  void* dst;
  const void* src;
  int64_t count;
  Dtype dst_dtype, src_dtype;
};

// What kDecide decides for all optimizer kernels of a step.  Lives in device
// memory, so that a step can be captured and replayed: kernels read it, the
// host need not.
struct StepScalars {
  double grad_scale;  // 1 / sum of weights / loss scale * clip factor
  int64_t skip;       // 1: change nothing
};

// What is the step's own of one optimizer group; in device memory too.
struct StepFactors {
  double beta1, beta2;      // of the optimizer; 0 if it has none
  double lr, weight_decay;  // from kRates
  // From kDecide, for step number t, from 1: 1 - lr * weight_decay, lr / (1 -
  // beta1^t), 1 / sqrt(1 - beta2^t); first: t is 1.
  double decay, step_size, inv_sqrt_bc2;
  int64_t first;
};

// AdamW on a flat shard.  With g = grad * grad_scale, all in the master's dtype
// (f32 or f64):
//   m = m * beta1 + g * one_minus_beta1
//   v = v * beta2 + (g * g) * one_minus_beta2
//   p = p * decay;  p = p - (m * step_size) / (sqrt(v) * inv_sqrt_bc2 + eps)
// decay = 1 - lr * wd, step_size = lr / (1 - beta1^t), inv_sqrt_bc2 = 1 /
// sqrt(1 - beta2^t): formed in f64 by the caller, rounded once.
// model, if not null, receives p rounded to model_dtype.  grad and state of
// another dtype are converted first; p is formed from m and v before they are
// rounded to state_dtype.  scalars null: scale 1.  factors, if not null: decay,
// step_size and inv_sqrt_bc2 come from there when the kernel runs.
struct AdamWArgs {
  void* master;
  void* model;
  const void* grad;
  void* m;
  void* v;
  const StepScalars* scalars;
  int64_t count;
  Dtype master_dtype, model_dtype, grad_dtype, state_dtype;
  double beta1, one_minus_beta1, beta2, one_minus_beta2;
  double decay, step_size, inv_sqrt_bc2, eps;
  const StepFactors* factors;
};

// SGD as PyTorch defines it: g += wd * p; if momentum: buf = first ? g :
// momentum * buf + (1 - dampening) * g; g = nesterov ? g + momentum * buf :
// buf; p -= lr * g.  factors, if not null: lr, weight_decay and first come from
// there when the kernel runs.
struct SgdArgs {
  void* master;
  void* model;
  const void* grad;
  void* momentum_buffer;  // null without momentum
  const StepScalars* scalars;
  int64_t count;
  Dtype master_dtype, model_dtype, grad_dtype, state_dtype;
  double lr, weight_decay, momentum, dampening;
  int64_t nesterov, first;
  const StepFactors* factors;
};

// A sum of squares that does not depend on the order or grouping of its terms:
// two exact fixed-point integers on a fixed exponent grid (see
// kernels/arithmetic/bins.h).  Equal sets of elements give equal bytes.  Plain
// data, zero is empty.
struct NormBins {
  static constexpr int kWords = 12;
  uint64_t high[kWords];  // the highest class of exponents seen
  uint64_t low[kWords];   // the class below it
  int64_t top;            // the highest class + 8; 0: no element but zeros
  int64_t nonfinite;      // count of inf and nan seen
  int64_t first_bad;      // smallest `base` + index of one, if nonfinite > 0;
                          // else -1 (0 in zeroed bins)
  int64_t reserved;       // 0; a lock while a kernel on a GPU adds
};
static_assert(sizeof(NormBins) <= 256);

// bins += sum of src[i]^2; non-finite elements are counted, not added.
struct NormArgs {
  NormBins* bins;
  const void* src;
  int64_t count;
  Dtype dtype;
  int32_t reserved;
  int64_t base;
};

// If some src[i] is infinite or NaN: *first_bad = the smallest such base + i,
// or what it was if that is smaller (-1: none yet).
struct FiniteArgs {
  int64_t* first_bad;
  const void* src;
  int64_t count;
  Dtype dtype;
  int32_t reserved;
  int64_t base;
};

// *at = the clock of the device when the stream gets here, in nanoseconds, +
// offset.  A device whose clock is not the host's monotonic one sets the offset
// at launch; callers leave it 0.
struct StampArgs {
  int64_t* at;
  int64_t offset;
};

// ---- The step, decided on the stream.  Per rank and step: kRates and kShare,
// kNorm into the share, an all-gather of the shares, kDecide, the optimizer
// kernels.  One thread's work each; nothing here is for the host to read but
// StepResult.

// The first infinite or NaN element that a rank contributed to reductions: of
// the lowest rank, its lowest element.
struct BadSource {
  int64_t element = -1;  // Coll::base + the index in src; -1: none
  int32_t rank = -1;     // in the group that summed; -1: this rank
  int32_t reserved = 0;
};

// Counters that live on the device.
struct StepCounters {
  int64_t steps;   // taken: kDecide counts
  int64_t serial;  // shares formed: kShare counts
};

// What a rank brings to a step; gathered as bytes.
struct StepShare {
  NormBins bins;        // of the elements that this rank counts
  double weight;        // sum of its microbatches' weights
  int64_t bad_element;  // first non-finite gradient it found; -1: none
  int32_t bad_microbatch, bad_rank;  // of that; the rank is of the world
  uint64_t call;                     // hash of the step's arguments
  int64_t steps;                     // taken before
  // Last: a share of an earlier step has an earlier one.  Negative: of a rank
  // whose communication failed.
  int64_t serial;
};

// factors[first + i].lr = lr[i], and the weight decay; count <= kMost.
struct RatesArgs {
  static constexpr int kMost = 12;
  StepFactors* factors;
  int32_t first, count;
  double lr[kMost], weight_decay[kMost];
};

// Forms the own share: bins are `counted` if use_counted, else empty (kNorm
// adds to them); the first of bad[microbatches] that has an element is this
// rank's, ranks[i] being the world rank of BadSource::rank i.
// ++counters->serial. Clears what the next step's reductions write: *counted
// and bad[].  failed, in memory of the host, may be null: the word says whether
// what the share is about failed.
struct ShareArgs {
  StepShare* share;
  StepCounters* counters;
  NormBins* counted;
  BadSource* bad;
  const int32_t* ranks;
  double weight;
  uint64_t call;
  int32_t microbatches, own_rank, use_counted, reserved;
  const uint32_t* failed;
};

enum class StepOutcome : int32_t {
  kNone,  // no step yet
  kTaken,
  kSkipped,   // a gradient or the norm is not finite
  kDisagree,  // shares' calls, steps or serials differ
  kWeights,   // the sum of weights is not above 0, or it or its inverse is inf
  kFailed,    // some rank's communication did, before the shares were formed
};

// In memory that the host reads.
struct StepResult {
  int64_t steps;        // taken, with this one
  int64_t bad_element;  // kSkipped: the first, or -1
  double grad_norm, weight_sum;
  int32_t bad_rank, bad_microbatch;
  StepOutcome outcome;
  // kDisagree: the first share that differs from the first one; -1: a share is
  // of an earlier step.  kFailed: the first share that says so.
  int32_t other;
};

// Merges the shares in order and decides: scalars, what each group's factors
// say of this step, counters->steps if it is taken.  Unless it is,
// scalars->skip is 1.  result[0] receives the outcome; result[1] too if it is
// kDisagree, kWeights or kFailed and result[1].outcome is kNone: the host takes
// it away some time.
struct DecideArgs {
  const StepShare* shares;
  int64_t n;
  StepScalars* scalars;
  StepFactors* factors;
  StepCounters* counters;
  StepResult* result;
  double loss_scale, clip_norm;  // clip_norm 0: none
  int32_t groups, reserved;
};
static_assert(sizeof(RatesArgs) <= 256 && sizeof(ShareArgs) <= 256);

// Runs one operation on the CPU, on the calling thread.
void run_cpu(OpCode op, const void* args);

// dst[i] = sum (or min, max) over k of srcs[k][i], linearly in k, in the
// accumulate dtype, times scale in the accumulate dtype (sums of floats; 1 is
// exact), rounded once to out.  add: dst[i] = dst[i] + that, in the accumulate
// dtype.  The accumulate dtype is f64 if in or out is, else f32.  dst may equal
// any srcs[k] if out is no wider than in.  The inner loop of all reductions.
// Integers wrap; a NaN in min or max gives NaN, and of equal values (-0 and 0)
// the first is kept.
struct ReduceArgs {
  void* dst;
  const void* const* srcs;
  int64_t n, count;
  Dtype in, out;
  alq_reduce_op op;  // SUM, MIN, MAX
  int32_t add;
  double scale;
};
void reduce_cpu(const ReduceArgs& args);

// dst[i] = sum over k of factors[k] * srcs[k][i], linearly in k, in the
// accumulate dtype (f64 for f64, else f32): factors are rounded to it, then
// each product and each sum, and the result once to dtype.  dst may equal any
// srcs[k].  Floats only.
struct PremulArgs {
  void* dst;
  const void* const* srcs;
  const double* factors;
  int64_t n, count;
  Dtype dtype;
  int32_t reserved;
};
void premul_cpu(const PremulArgs& args);

// Exact merge; the sum of squares, rounded once to f64 (inf and 0 beyond its
// range); its square root within 1 ulp, also where the sum is out of range
// (elements of 1e200 or 1e-200).  The same for every grouping.
void norm_merge(NormBins* into, const NormBins& from);
double norm_value(const NormBins& bins);
double norm_root(const NormBins& bins);

// What the operations accept.  Others change nothing: check before.
//   cast: any float to any float.  accumulate: any float into f32 or f64.
//   reduce: any float to any float, integers to their own dtype.
bool cast_supported(Dtype dst, Dtype src);
bool accumulate_supported(Dtype dst, Dtype src);
bool reduce_supported(Dtype in, Dtype out, alq_reduce_op op);

// Names of the SIMD targets compiled in and the one chosen ("AVX3").
const char* simd_targets();
const char* simd_chosen();

}  // namespace aliquot::kernels
