// Fill, copy, cast and accumulate: equal bytes to the CPU's, and against f64.
#include <fmt/format.h>

#include <cmath>

#include "bench_gpu.h"

namespace aliquot::gpu {
namespace {

using kernels::OpCode;

constexpr Dtype kFloats[] = {ALQ_F64, ALQ_F32, ALQ_F16, ALQ_BF16};
constexpr int64_t kOdd = 4099;  // neither a multiple of an access nor of a grid

struct Case {
  Array& out;
  std::function<double(int64_t)> want;
  std::function<double(int64_t)> size;
  double bound;  // half ulps
};

void judge(Machine& m, const std::string& name, Case c) {
  c.out.fetch();
  const double error = worst(c.out, c.want, c.size);
  Json figures = Json::object();
  figures["error_half_ulps"] = error;
  figures["equal_bits_to_cpu"] = c.out.equal_bits();
  if (!(error <= c.bound)) {
    m.report.failed(
        name, fmt::format("error of {} half ulps, {} allowed", error, c.bound),
        figures);
  } else if (!c.out.equal_bits()) {
    m.report.failed(name, "bytes differ from the CPU's", figures);
  } else {
    m.report.ok(name, figures);
  }
}

void check_cast(Machine& m, Dtype to, Dtype from, double scale, int64_t off) {
  std::mt19937_64 rng(7);
  Array src(m, from, kOdd, off), dst(m, to, kOdd, off);
  src.fill(rng, 3);
  m.run(OpCode::kCast,
        kernels::CastArgs{dst.device(), src.device(), kOdd, to, from, scale});
  kernels::CastArgs host = {dst.host(), src.host(), kOdd, to, from, scale};
  kernels::run_cpu(OpCode::kCast, &host);
  const auto want = [&](int64_t i) { return src.before(i) * scale; };
  // A product formed in f32 is rounded twice.
  judge(m,
        fmt::format("cast {} to {}{}{}", dtype_name(from), dtype_name(to),
                    scale == 1 ? "" : " scaled", off == 0 ? "" : " unaligned"),
        {dst, want, [&](int64_t i) { return std::abs(want(i)); },
         scale == 1 ? 1.0 : 3.0});
}

void check_accumulate(Machine& m, Dtype to, Dtype from) {
  std::mt19937_64 rng(8);
  Array src(m, from, kOdd), dst(m, to, kOdd);
  src.fill(rng, 2);
  dst.fill(rng, 1);
  m.run(OpCode::kAccumulate,
        kernels::AccumulateArgs{dst.device(), src.device(), kOdd, to, from});
  kernels::AccumulateArgs host = {dst.host(), src.host(), kOdd, to, from};
  kernels::run_cpu(OpCode::kAccumulate, &host);
  judge(m,
        fmt::format("accumulate {} into {}", dtype_name(from), dtype_name(to)),
        {dst, [&](int64_t i) { return dst.before(i) + src.before(i); },
         [&](int64_t i) {
           return std::abs(dst.before(i)) + std::abs(src.before(i));
         },
         2.0});
}

void check_bytes(Machine& m) {
  std::mt19937_64 rng(9);
  for (int64_t off : {0, 3}) {
    const char* how = off == 0 ? "" : " unaligned";
    Array from(m, ALQ_U8, kOdd, off), to(m, ALQ_U8, kOdd, off);
    kernels::FillArgs fill = {from.device(), kOdd, 0xa7, 1};
    m.run(OpCode::kFill, fill);
    fill.dst = from.host();
    kernels::run_cpu(OpCode::kFill, &fill);
    const auto zero = [](int64_t) { return 1.0; };
    judge(m, fmt::format("fill{}", how),
          {from, [](int64_t) { return 167.0; }, zero, 0.0});
    kernels::CopyArgs copy = {to.device(), from.device(), kOdd};
    m.run(OpCode::kCopy, copy);
    kernels::CopyArgs host = {to.host(), from.host(), kOdd};
    kernels::run_cpu(OpCode::kCopy, &host);
    judge(m, fmt::format("copy{}", how),
          {to, [](int64_t) { return 167.0; }, zero, 0.0});
  }
}

}  // namespace

void check_moves(Machine& m) {
  check_bytes(m);
  for (Dtype to : kFloats) {
    for (Dtype from : kFloats) {
      for (int64_t off : {0, 1}) {
        check_cast(m, to, from, 1, off);
        check_cast(m, to, from, 0.3, off);
      }
      if (to == ALQ_F64 || to == ALQ_F32) check_accumulate(m, to, from);
    }
  }
}

}  // namespace aliquot::gpu
