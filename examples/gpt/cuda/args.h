// Every kernel of the model, and what it takes: one plain struct by value.
// T is the model's element type, C what it computes in (number.h); each kernel
// exists for f64, f32 and bf16, with that name after its own.
#pragma once

#include <cstdint>

namespace gpt::cuda {

// Threads of every block.
constexpr int kBlock = 128;

// x[r] = table[tokens[r]]
struct EmbedArgs {
  const uint8_t* tokens;
  const void* table;
  void* x;
  int64_t rows, cols;
};

// sum[v] = the sum of d[r] over the rows of token v, in their order.
struct EmbedBackwardArgs {
  const uint8_t* tokens;
  const void* d;
  void* sum;  // C
  int64_t rows, cols, vocab;
};

struct RmsnormArgs {
  const void *x, *w;
  void *y, *scale;  // scale: C
  int64_t rows, cols;
};

struct RmsnormBackwardArgs {
  const void *x, *w, *scale, *dy;  // scale, dy: C
  void* dx;
  int64_t rows, cols;
};

struct RmsnormWeightArgs {
  const void *x, *scale, *dy;
  void* dw;  // C
  int64_t rows, cols;
};

struct RopeArgs {
  void* x;
  const void *cos, *sin;  // C [seq, half]
  int64_t rows, heads, half, seq;
  int64_t back;
};

struct SwigluArgs {
  const void *gate, *up;
  void* y;
  int64_t count;
};

struct SwigluBackwardArgs {
  const void* dy;
  void *gate, *up;
  int64_t count;
};

struct AttentionSizes {
  int64_t samples, seq, heads, kv_heads, dim;
};

// scratch: C, seq elements per block.
struct AttentionArgs {
  const void *q, *k, *v;
  void *probs, *o, *scratch;
  AttentionSizes s;
};

struct AttentionRowsArgs {
  const void *k, *v, *probs, *dout;
  void *dscores, *dq, *scratch;
  AttentionSizes s;
};

struct AttentionColumnsArgs {
  const void *q, *probs, *dscores, *dout;
  void *dk, *dv;
  AttentionSizes s;
};

struct LossArgs {
  const uint8_t* targets;
  const void* logits;  // C
  double* losses;
  int64_t rows, cols;
};

struct LossBackwardArgs {
  const uint8_t* targets;
  const void* logits;
  void* dlogits;
  int64_t rows, cols;
  double factor;
};

// to[i] = sum[i], or to[i] + sum[i]
struct PutArgs {
  const void* sum;  // C
  void* to;
  int64_t count, add;
};

// X(kernel, args, kind): kThread: threads never wait for each other; kBlock:
// written in phases (device.h).
#define GPT_KERNELS(X)                                \
  X(embed, EmbedArgs, kThread)                        \
  X(embed_backward, EmbedBackwardArgs, kThread)       \
  X(rmsnorm, RmsnormArgs, kBlock)                     \
  X(rmsnorm_backward, RmsnormBackwardArgs, kBlock)    \
  X(rmsnorm_weight, RmsnormWeightArgs, kThread)       \
  X(rope, RopeArgs, kThread)                          \
  X(swiglu, SwigluArgs, kThread)                      \
  X(swiglu_backward, SwigluBackwardArgs, kThread)     \
  X(attention, AttentionArgs, kBlock)                 \
  X(attention_rows, AttentionRowsArgs, kBlock)        \
  X(attention_columns, AttentionColumnsArgs, kThread) \
  X(loss, LossArgs, kBlock)                           \
  X(loss_backward, LossBackwardArgs, kBlock)          \
  X(put, PutArgs, kThread)

}  // namespace gpt::cuda
