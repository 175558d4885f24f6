// Speed of the CPU kernels as a ratio to plain loops with the same reads and
// writes, timed in the same process: runs of kernel and loop alternate; shown
// are the median speeds, the median of the ratios of neighbouring runs, and the
// ratio of the best runs (on a busy machine the one to look at).
// 1.00 means as fast as memory (or cache) allows.
//   kernels_bench [elements [rounds [target]]]
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/arithmetic/half.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/ops.h"

#if defined(__x86_64__)
#define BENCH_TARGET __attribute__((target("avx2"), noinline))
#else
#define BENCH_TARGET __attribute__((noinline))
#endif

namespace aliquot::kernels {
namespace {

// The plain loops.
BENCH_TARGET void loop_add2(float* y, const float* a, const float* b,
                            size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}
BENCH_TARGET void loop_add_in_place(float* y, const float* a, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] += a[i];
}
BENCH_TARGET void loop_add3(float* y, const float* a, const float* b,
                            const float* c, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = a[i] + b[i] + c[i];
}
BENCH_TARGET void loop_add4(float* y, const float* const* s, size_t n) {
  const float *a = s[0], *b = s[1], *c = s[2], *d = s[3];
  for (size_t i = 0; i < n; ++i) y[i] = a[i] + b[i] + c[i] + d[i];
}
BENCH_TARGET void loop_add8(float* y, const float* const* s, size_t n) {
  const float *a = s[0], *b = s[1], *c = s[2], *d = s[3];
  const float *e = s[4], *f = s[5], *g = s[6], *h = s[7];
  for (size_t i = 0; i < n; ++i) {
    y[i] = a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i] + h[i];
  }
}
BENCH_TARGET void loop_scale(float* y, const float* a, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = a[i] * 0.5f;
}
// 4 bytes in, 2 out; the words of a pair are mixed, which is cheap.
BENCH_TARGET void loop_halve(uint64_t* y, const uint64_t* a, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = a[i] ^ a[i + n];
}
// 2 bytes in, 4 out.
BENCH_TARGET void loop_double(uint64_t* y, const uint64_t* a, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    y[i] = a[i];
    y[i + n] = a[i];
  }
}
BENCH_TARGET uint64_t loop_read(const uint64_t* a, size_t n) {
  uint64_t sum = 0;
  for (size_t i = 0; i < n; ++i) sum += a[i];
  return sum;
}
// The reads and writes of AdamW on f32, with little arithmetic.
BENCH_TARGET void loop_adamw(float* p, const float* g, float* m, float* v,
                             size_t n) {
  for (size_t i = 0; i < n; ++i) {
    m[i] += g[i];
    v[i] += g[i];
    p[i] += g[i];
  }
}
BENCH_TARGET void loop_sgd(float* p, const float* g, float* m, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    m[i] += g[i];
    p[i] += m[i];
  }
}

// Time of this thread, so that other programs count little.
double thread_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds(const std::function<void()>& f, int repeat) {
  const double start = thread_seconds();
  for (int k = 0; k < repeat; ++k) f();
  return (thread_seconds() - start) / repeat;
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

struct Bench {
  size_t n;
  int rounds;

  // `bytes` moved per element.
  void compare(const std::string& name, double bytes,
               const std::function<void()>& kernel,
               const std::function<void()>& loop) const {
    const int repeat =
        static_cast<int>(std::max<size_t>(1, (size_t{1} << 22) / (n + 1)));
    std::vector<double> kernel_times, loop_times, ratios;
    kernel();
    loop();
    for (int r = 0; r < rounds; ++r) {
      kernel_times.push_back(seconds(kernel, repeat));
      loop_times.push_back(seconds(loop, repeat));
      ratios.push_back(loop_times.back() / kernel_times.back());
    }
    const double ours = median(kernel_times), theirs = median(loop_times);
    const double best =
        *std::min_element(loop_times.begin(), loop_times.end()) /
        *std::min_element(kernel_times.begin(), kernel_times.end());
    const double gigabytes = bytes * static_cast<double>(n) * 1e-9;
    fmt::print(
        "{:32} {:7.2f} GB/s  loop {:7.2f} GB/s  ratio {:5.2f}  best {:5.2f}\n",
        name, gigabytes / ours, gigabytes / theirs, median(ratios), best);
  }
};

struct Data {
  explicit Data(size_t n) : arrays(10, std::vector<float>(n + 16)) {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (size_t k = 0; k < arrays.size(); ++k) {
      float* array = at(k);
      for (size_t i = 0; i < n; ++i) {
        array[i] = i < 65536 ? normal(rng) * 1e-3f : array[i % 65536];
      }
    }
  }
  // On a cache line, as the buffers of the library are.
  float* at(size_t k) {
    const auto address = reinterpret_cast<uintptr_t>(arrays[k].data());
    return arrays[k].data() + (64 - address % 64) % 64 / sizeof(float);
  }
  uint64_t* words(size_t k) { return reinterpret_cast<uint64_t*>(at(k)); }
  std::vector<std::vector<float>> arrays;
};

// Bit patterns that are ordinary in the half types too.
void make_halves(Data& data, size_t n) {
  const int64_t count = static_cast<int64_t>(n);
  for (size_t k = 1; k < 9; ++k) {
    CastArgs args = {data.at(k), data.at(k), count, ALQ_BF16, ALQ_F32, 1.0};
    run_cpu(OpCode::kCast, &args);
  }
}

void bench_reduce(const Bench& b, Data& data, int64_t sources, Dtype in,
                  Dtype out, const std::function<void()>& loop) {
  std::vector<const void*> srcs;
  for (int64_t k = 0; k < sources; ++k) {
    srcs.push_back(data.at(static_cast<size_t>(k) + 1));
  }
  const ReduceArgs args = {
      data.at(0), srcs.data(), sources, static_cast<int64_t>(b.n), in, out,
      ALQ_SUM,    0,           1.0};
  const double bytes =
      static_cast<double>(sources * dtype_size(in) + dtype_size(out));
  b.compare(
      fmt::format("reduce {} x {} to {}", sources, dtype_name(in),
                  dtype_name(out)),
      bytes, [&] { reduce_cpu(args); }, loop);
}

void bench_cast(const Bench& b, Data& data, Dtype from, Dtype to,
                const std::function<void()>& loop, double scale = 1.0) {
  CastArgs args = {data.at(0), data.at(1), static_cast<int64_t>(b.n),
                   to,         from,       scale};
  b.compare(
      fmt::format("cast {} to {}{}", dtype_name(from), dtype_name(to),
                  scale == 1.0 ? "" : " scaled"),
      static_cast<double>(dtype_size(from) + dtype_size(to)),
      [&] { run_cpu(OpCode::kCast, &args); }, loop);
}

void bench_norm(const Bench& b, Data& data, Dtype dtype, size_t array,
                const char* what) {
  NormBins bins = {};
  const size_t count = dtype == ALQ_F64 ? b.n / 2 : b.n;
  NormArgs args = {&bins, data.at(array), static_cast<int64_t>(count), dtype, 0,
                   0};
  const size_t bytes = count * static_cast<size_t>(dtype_size(dtype));
  volatile uint64_t sink = 0;
  b.compare(
      fmt::format("norm {}{}", dtype_name(dtype), what),
      static_cast<double>(bytes) / static_cast<double>(b.n),
      [&] { run_cpu(OpCode::kNorm, &args); },
      [&] { sink = loop_read(data.words(array), bytes / 8); });
}

void bench_adamw(const Bench& b, Data& data, Dtype grad, bool model) {
  const StepScalars scalars = {1.0, 0};
  AdamWArgs a = {};
  a.scalars = &scalars;
  a.count = static_cast<int64_t>(b.n);
  a.master_dtype = a.state_dtype = ALQ_F32;
  a.grad_dtype = grad;
  a.model_dtype = ALQ_BF16;
  a.master = data.at(0);
  a.grad = data.at(1);
  a.m = data.at(2);
  a.v = data.at(3);
  a.model = model ? data.at(4) : nullptr;
  a.beta1 = 0.9;
  a.one_minus_beta1 = 0.1;
  a.beta2 = 0.999;
  a.one_minus_beta2 = 0.001;
  a.decay = 1;
  a.step_size = 1e-3;
  a.inv_sqrt_bc2 = 1;
  a.eps = 1e-8;
  for (size_t i = 0; i < b.n; ++i) data.at(3)[i] = 1e-6f;
  b.compare(
      fmt::format("adamw f32, grad {}{}", dtype_name(grad),
                  model ? ", bf16 model" : ""),
      24.0 + static_cast<double>(dtype_size(grad)) + (model ? 2 : 0),
      [&] { run_cpu(OpCode::kAdamW, &a); },
      [&] { loop_adamw(data.at(5), data.at(6), data.at(7), data.at(8), b.n); });
}

void bench_sgd(const Bench& b, Data& data) {
  SgdArgs a = {};
  a.count = static_cast<int64_t>(b.n);
  a.master_dtype = a.state_dtype = a.grad_dtype = ALQ_F32;
  a.master = data.at(0);
  a.grad = data.at(1);
  a.momentum_buffer = data.at(2);
  a.lr = 1e-6;
  a.momentum = 0.9;
  b.compare(
      "sgd momentum f32", 20, [&] { run_cpu(OpCode::kSgd, &a); },
      [&] { loop_sgd(data.at(5), data.at(6), data.at(7), b.n); });
}

void bench_floats(const Bench& b, Data& data) {
  const size_t n = b.n;
  const float* s[8];
  for (size_t k = 0; k < 8; ++k) s[k] = data.at(k + 1);
  bench_reduce(b, data, 2, ALQ_F32, ALQ_F32,
               [&] { loop_add2(data.at(0), s[0], s[1], n); });
  bench_reduce(b, data, 3, ALQ_F32, ALQ_F32,
               [&] { loop_add3(data.at(0), s[0], s[1], s[2], n); });
  bench_reduce(b, data, 4, ALQ_F32, ALQ_F32,
               [&] { loop_add4(data.at(0), s, n); });
  bench_reduce(b, data, 8, ALQ_F32, ALQ_F32,
               [&] { loop_add8(data.at(0), s, n); });
  AccumulateArgs accumulate = {data.at(0), data.at(1), static_cast<int64_t>(n),
                               ALQ_F32, ALQ_F32};
  b.compare(
      "accumulate f32", 12, [&] { run_cpu(OpCode::kAccumulate, &accumulate); },
      [&] { loop_add_in_place(data.at(2), data.at(3), n); });
  bench_cast(
      b, data, ALQ_F32, ALQ_F32, [&] { loop_scale(data.at(0), data.at(1), n); },
      0.5);
  for (Dtype half : {ALQ_BF16, ALQ_F16}) {
    bench_cast(b, data, ALQ_F32, half,
               [&] { loop_halve(data.words(0), data.words(1), n / 4); });
  }
  bench_norm(b, data, ALQ_F32, 1, "");
  FillArgs fill = {data.at(0), static_cast<int64_t>(n), 0x3f8ccccd, 4};
  b.compare(
      "fill 4 bytes", 4, [&] { run_cpu(OpCode::kFill, &fill); },
      [&] { std::memset(data.at(0), 1, n * 4); });
  bench_sgd(b, data);
  bench_adamw(b, data, ALQ_F32, false);
  bench_adamw(b, data, ALQ_F32, true);
}

void bench_halves(const Bench& b, Data& data) {
  const size_t n = b.n;
  make_halves(data, n);
  const float* s[8];
  for (size_t k = 0; k < 8; ++k) s[k] = data.at(k + 1);
  for (Dtype half : {ALQ_BF16, ALQ_F16}) {
    bench_reduce(b, data, 2, half, half,
                 [&] { loop_add2(data.at(0), s[0], s[1], n / 2); });
    bench_reduce(b, data, 4, half, half,
                 [&] { loop_add4(data.at(0), s, n / 2); });
    bench_cast(b, data, half, ALQ_F32,
               [&] { loop_double(data.words(0), data.words(1), n / 4); });
    bench_norm(b, data, half, 1, "");
  }
  bench_adamw(b, data, ALQ_BF16, true);
}

void bench_doubles(const Bench& b, Data& data) {
  const int64_t count = static_cast<int64_t>(b.n / 2);
  CastArgs widen = {data.at(0), data.at(9), count, ALQ_F64, ALQ_F32, 1.0};
  run_cpu(OpCode::kCast, &widen);
  bench_norm(b, data, ALQ_F64, 0, "");
  // Magnitudes over the whole range: twelve slices.
  for (size_t i = 0; i < b.n; ++i) {
    data.at(1)[i] = std::ldexp(1.5f, static_cast<int>(i * 7 % 200) - 100);
  }
  bench_norm(b, data, ALQ_F32, 1, ", range 2^200");
}

void run(size_t n, int rounds) {
  fmt::print("target {} of [{}], {} elements, medians of {} rounds\n",
             simd_chosen(), simd_targets(), n, rounds);
  Data data(n);
  const Bench b = {n, rounds};
  bench_floats(b, data);
  bench_halves(b, data);
  bench_doubles(b, data);
}

}  // namespace
}  // namespace aliquot::kernels

int main(int argc, char** argv) {
  using namespace aliquot::kernels;
  const long n = argc > 1 ? std::atol(argv[1]) : 1 << 24;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 11;
  if (n < 64 || rounds < 1) {
    fmt::print(stderr, "kernels_bench: at least 64 elements and 1 round\n");
    return 2;
  }
  if (argc > 3) {
    size_t target = 0;
    while (target < kTargets &&
           std::strcmp(target_name(target), argv[3]) != 0) {
      ++target;
    }
    if (!force_target(target)) {
      fmt::print(stderr, "kernels_bench: no target {} here\n", argv[3]);
      return 2;
    }
  }
  run(static_cast<size_t>(n), rounds);
  return 0;
}
