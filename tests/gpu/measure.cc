// Bandwidth of the kernels that a step spends its time in, as bytes read and
// written per second, beside a copy's of the same run.  Each is the best of
// some rounds of many launches on one stream, timed by the host around them.
#include <fmt/format.h>

#include <algorithm>

#include "bench_gpu.h"

namespace aliquot::gpu {
namespace {

using kernels::OpCode;

constexpr int64_t kCount = int64_t{1} << 27;  // elements
constexpr int kRounds = 5, kLaunches = 20;
constexpr double kLeast = 0.9;  // of the copy's bandwidth

class Bench {
 public:
  explicit Bench(Machine& m) : m_(m) {
    stream_ = need(m.device->create_stream("bench"), "create_stream");
  }

  std::byte* take(int64_t bytes) {
    memory_.push_back(need(m_.device->allocate(bytes, "bench"), "allocate"));
    return memory_.back()->data();
  }

  template <typename Args>
  double gb_per_s(OpCode op, const Args& args, int64_t bytes) {
    double best = 0;
    for (int round = 0; round <= kRounds; ++round) {  // the first warms up
      const int64_t start = now_ns();
      for (int i = 0; i < kLaunches; ++i) m_.run(op, args, stream_.get());
      m_.wait(*stream_);
      const auto ns = static_cast<double>(now_ns() - start) / kLaunches;
      if (round > 0) best = std::max(best, static_cast<double>(bytes) / ns);
    }
    return best;
  }

  template <typename Args>
  void judge(const std::string& name, OpCode op, const Args& args,
             int64_t bytes, double copy) {
    const double rate = gb_per_s(op, args, bytes);
    Json figures = Json::object();
    figures["gb_per_s"] = rate;
    figures["copy_gb_per_s"] = copy;
    figures["of_copy"] = rate / copy;
    if (rate >= kLeast * copy) return m_.report.ok(name, figures);
    m_.report.failed(
        name,
        fmt::format("{:.0f} GB/s are {:.0f} % of the copy's, {:.0f} % "
                    "are wanted",
                    rate, 100 * rate / copy, 100 * kLeast),
        figures);
  }

 private:
  Machine& m_;
  std::shared_ptr<Stream> stream_;
  std::vector<std::unique_ptr<Memory>> memory_;
};

kernels::AdamWArgs adamw(Bench& b, Dtype grad) {
  kernels::AdamWArgs a = {};
  a.master = b.take(kCount * 4);
  a.model = b.take(kCount * 2);
  a.grad = b.take(kCount * dtype_size(grad));
  a.m = b.take(kCount * 4);
  a.v = b.take(kCount * 4);
  a.count = kCount;
  a.master_dtype = a.state_dtype = ALQ_F32;
  a.model_dtype = ALQ_BF16;
  a.grad_dtype = grad;
  a.beta1 = 0.9;
  a.one_minus_beta1 = 0.1;
  a.beta2 = 0.95;
  a.one_minus_beta2 = 0.05;
  a.decay = 0.999;
  a.step_size = 1e-3;
  a.inv_sqrt_bc2 = 1;
  a.eps = 1e-8;
  return a;
}

}  // namespace

void measure(Machine& m) {
  if (m.stand_in) {
    return m.report.skipped("bandwidth",
                            "this is the stand-in: its speed says nothing");
  }
  Bench b(m);
  std::byte *wide = b.take(kCount * 4), *other = b.take(kCount * 4);
  const double copy = b.gb_per_s(
      OpCode::kCopy, kernels::CopyArgs{other, wide, kCount * 4}, kCount * 8);
  Json figures = Json::object();
  figures["gb_per_s"] = copy;
  m.report.ok("bandwidth of a copy", figures);
  b.judge("bandwidth of cast f32 to bf16", OpCode::kCast,
          kernels::CastArgs{other, wide, kCount, ALQ_BF16, ALQ_F32, 1},
          kCount * 6, copy);
  b.judge("bandwidth of cast bf16 to f32", OpCode::kCast,
          kernels::CastArgs{wide, other, kCount, ALQ_F32, ALQ_BF16, 1},
          kCount * 6, copy);
  b.judge("bandwidth of accumulate bf16 into f32", OpCode::kAccumulate,
          kernels::AccumulateArgs{wide, other, kCount, ALQ_F32, ALQ_BF16},
          kCount * 10, copy);
  // Read master, gradient, m, v; write master, m, v and the model.
  b.judge("bandwidth of AdamW, gradients f32", OpCode::kAdamW,
          adamw(b, ALQ_F32), kCount * 30, copy);
  b.judge("bandwidth of AdamW, gradients bf16", OpCode::kAdamW,
          adamw(b, ALQ_BF16), kCount * 28, copy);
}

}  // namespace aliquot::gpu
