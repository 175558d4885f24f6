// The step's decision (rates, share, decide) against the CPU's, and the clock.
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "bench_gpu.h"

namespace aliquot::gpu {
namespace {

using kernels::OpCode;

// Everything that a step decides from and writes, in one block.
struct State {
  kernels::StepShare shares[2] = {};
  kernels::StepFactors factors[2] = {};
  kernels::StepCounters counters = {4, 8};
  kernels::StepScalars scalars = {};
  kernels::StepResult result[2] = {};
  kernels::NormBins counted = {};
  kernels::BadSource bad[2];
  int32_t world[2] = {4, 9};
  float data[4] = {3, 4, 0.5f, -2};
};

void decide(State* s, int64_t bad,
            const std::function<void(OpCode, const void*, size_t)>& run,
            const std::function<void(int64_t)>& prepare) {
  const auto op = [&run](OpCode code, const auto& args) {
    run(code, &args, sizeof args);
  };
  kernels::RatesArgs rates = {s->factors, 0, 2, {0.5, 1}, {0.25, 0}};
  op(OpCode::kRates, rates);
  for (int r = 0; r < 2; ++r) {
    prepare(bad);
    op(OpCode::kNorm,
       kernels::NormArgs{&s->counted, s->data, 4, ALQ_F32, 0, 40});
    op(OpCode::kShare,
       kernels::ShareArgs{&s->shares[r], &s->counters, &s->counted, s->bad,
                          s->world, 1.5, 77, 2, 7, 1, 0, nullptr});
  }
  op(OpCode::kDecide,
     kernels::DecideArgs{s->shares, 2, &s->scalars, s->factors, &s->counters,
                         s->result, 2.0, 1.0, 2, 0});
}

// Powers may differ in the last bits between libraries; nothing else may.
std::string difference(const State& a, const State& b) {
  const auto same = [](const auto& x, const auto& y) {
    return std::memcmp(&x, &y, sizeof x) == 0;
  };
  if (!same(a.shares, b.shares)) return "shares";
  if (!same(a.counters, b.counters)) return "counters";
  if (!same(a.scalars, b.scalars)) return "scalars";
  if (!same(a.result, b.result)) return "result";
  for (int g = 0; g < 2; ++g) {
    const kernels::StepFactors &x = a.factors[g], &y = b.factors[g];
    const auto near = [](double p, double q) {
      return std::abs(p - q) <= 1e-14 * std::abs(q) || p == q;
    };
    if (!near(x.decay, y.decay) || !near(x.step_size, y.step_size) ||
        !near(x.inv_sqrt_bc2, y.inv_sqrt_bc2) || x.first != y.first) {
      return "factors";
    }
  }
  return "";
}

State start() {
  State s;
  s.factors[0].beta1 = 0.9;
  s.factors[0].beta2 = 0.999;
  return s;
}

State on_gpu(Machine& m, int64_t bad) {
  State s = start();
  auto memory = need(m.device->allocate(sizeof s, "step"), "allocate");
  auto* at = reinterpret_cast<State*>(memory->data());
  m.run(OpCode::kCopy, kernels::CopyArgs{at, &s, sizeof s});
  const int64_t serial = 8;
  decide(
      at, bad,
      [&m](OpCode op, const void* args, size_t bytes) {
        m.run(op, args, bytes);
      },
      [&](int64_t element) {
        m.run(OpCode::kCopy,
              kernels::CopyArgs{&at->counters.serial, &serial, sizeof serial});
        m.run(OpCode::kCopy,
              kernels::CopyArgs{&at->bad[1].element, &element, sizeof element});
      });
  m.run(OpCode::kCopy, kernels::CopyArgs{&s, at, sizeof s});
  return s;
}

State on_cpu(int64_t bad) {
  State s = start();
  decide(
      &s, bad,
      [](OpCode op, const void* args, size_t) { kernels::run_cpu(op, args); },
      [&s](int64_t element) {
        s.counters.serial = 8;
        s.bad[1].element = element;
      });
  return s;
}

void check_clock(Machine& m) {
  auto memory = need(m.device->allocate_host(16, "clock"), "allocate_host");
  auto* at = reinterpret_cast<int64_t*>(memory->data());
  const int64_t before = now_ns();
  m.run(OpCode::kStamp, kernels::StampArgs{at, 0});
  m.run(OpCode::kStamp, kernels::StampArgs{at + 1, 0});
  const int64_t after = now_ns();
  Json figures = Json::object();
  figures["after_host_ns"] = at[0] - before;
  constexpr int64_t kSlack = 100'000'000;
  if (at[0] > at[1]) return m.report.failed("stamp", "the clock went back");
  if (at[0] < before - kSlack || at[1] > after + kSlack) {
    return m.report.failed("stamp", "far from the host's clock", figures);
  }
  m.report.ok("stamp", figures);
}

}  // namespace

void check_step(Machine& m) {
  for (int64_t bad : {-1, 30}) {
    const State got = on_gpu(m, bad), want = on_cpu(bad);
    const std::string name = fmt::format("rates, share, decide: a step {}",
                                         bad < 0 ? "taken" : "skipped");
    const std::string part = difference(got, want);
    const double grad_norm = std::sqrt(2 * (9 + 16 + 0.25 + 4)) / (3.0 * 2.0);
    if (!part.empty()) {
      m.report.failed(name, part + " differ from the CPU's");
    } else if (!(std::abs(got.result[0].grad_norm - grad_norm) < 1e-14)) {
      m.report.failed(name, fmt::format("norm {}, f64 says {}",
                                        got.result[0].grad_norm, grad_norm));
    } else if (got.scalars.skip != (bad < 0 ? 0 : 1)) {
      m.report.failed(name, "decided otherwise");
    } else {
      m.report.ok(name);
    }
  }
  check_clock(m);
}

}  // namespace aliquot::gpu
