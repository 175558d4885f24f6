// AdamW and SGD against the formulas of kernels/ops.h in f64, and against the
// CPU's bytes.
#include <fmt/format.h>

#include <cmath>

#include "bench_gpu.h"

namespace aliquot::gpu {
namespace {

using kernels::OpCode;

constexpr int64_t kCount = 5003;
constexpr double kBeta1 = 0.9, kBeta2 = 0.95, kEps = 1e-8;
constexpr double kDecay = 0.999, kStepSize = 3e-3, kInverse = 1.7;
// Half ulps of the largest term.  Each rounding costs one; what is subtracted
// does not make the terms larger.
constexpr double kBound = 4;

struct Types {
  Dtype master, model, grad, state;
};

constexpr Types kTypes[] = {{ALQ_F32, ALQ_F32, ALQ_F32, ALQ_F32},
                            {ALQ_F32, ALQ_BF16, ALQ_F32, ALQ_F32},
                            {ALQ_F32, ALQ_BF16, ALQ_BF16, ALQ_F32},
                            {ALQ_F32, ALQ_F16, ALQ_F16, ALQ_F32},
                            {ALQ_F64, ALQ_F64, ALQ_F64, ALQ_F64},
                            {ALQ_F32, ALQ_BF16, ALQ_F32, ALQ_BF16}};

struct Arrays {
  Array master, model, grad, m, v;
  kernels::StepScalars scalars = {0.5, 0};
  std::unique_ptr<Memory> on_gpu;

  Arrays(Machine& machine, const Types& t, int64_t off)
      : master(machine, t.master, kCount, off),
        model(machine, t.model, kCount, off),
        grad(machine, t.grad, kCount, off),
        m(machine, t.state, kCount, off),
        v(machine, t.state, kCount, off) {
    std::mt19937_64 rng(11);
    master.fill(rng, 1);
    grad.fill(rng, 0.1);
    m.fill(rng, 0.1);
    v.fill(rng, 0.01, true);
    on_gpu =
        need(machine.device->allocate(sizeof scalars, "scalars"), "allocate");
    machine.run(OpCode::kCopy,
                kernels::CopyArgs{on_gpu->data(), &scalars, sizeof scalars});
  }
  void fetch() {
    for (Array* a : {&master, &model, &m, &v}) a->fetch();
  }
  bool equal_bits() const {
    return master.equal_bits() && model.equal_bits() && m.equal_bits() &&
           v.equal_bits();
  }
  double scaled(int64_t i) const { return grad.before(i) * 0.5; }
};

void judge(Machine& machine, const std::string& name, double error,
           bool equal) {
  Json figures = Json::object();
  figures["error_half_ulps"] = error;
  figures["equal_bits_to_cpu"] = equal;
  if (!(error <= kBound)) {
    machine.report.failed(
        name, fmt::format("error of {} half ulps, {} allowed", error, kBound),
        figures);
  } else if (!equal) {
    machine.report.failed(name, "bytes differ from the CPU's", figures);
  } else {
    machine.report.ok(name, figures);
  }
}

std::string name_of(const char* op, const Types& t, int64_t off) {
  return fmt::format("{} {}, model {}, gradients {}, state {}{}", op,
                     dtype_name(t.master), dtype_name(t.model),
                     dtype_name(t.grad), dtype_name(t.state),
                     off == 0 ? "" : ", unaligned");
}

// The error of the model against the master it was rounded from.
double model_error(const Arrays& a) {
  const auto want = [&a](int64_t i) { return a.master.of_gpu(i); };
  return worst(a.model, want, [&](int64_t i) { return std::abs(want(i)); });
}

void check_adamw(Machine& machine, const Types& t, int64_t off) {
  Arrays a(machine, t, off);
  kernels::AdamWArgs args = {
      a.master.device(),
      a.model.device(),
      a.grad.device(),
      a.m.device(),
      a.v.device(),
      reinterpret_cast<const kernels::StepScalars*>(a.on_gpu->data()),
      kCount,
      t.master,
      t.model,
      t.grad,
      t.state,
      kBeta1,
      1 - kBeta1,
      kBeta2,
      1 - kBeta2,
      kDecay,
      kStepSize,
      kInverse,
      kEps,
      nullptr};
  machine.run(OpCode::kAdamW, args);
  args.master = a.master.host();
  args.model = a.model.host();
  args.grad = a.grad.host();
  args.m = a.m.host();
  args.v = a.v.host();
  args.scalars = &a.scalars;
  kernels::run_cpu(OpCode::kAdamW, &args);
  a.fetch();

  const auto m = [&](int64_t i) {
    return a.m.before(i) * kBeta1 + a.scaled(i) * (1 - kBeta1);
  };
  const auto v = [&](int64_t i) {
    return a.v.before(i) * kBeta2 + a.scaled(i) * a.scaled(i) * (1 - kBeta2);
  };
  const auto update = [&](int64_t i) {
    return m(i) * kStepSize / (std::sqrt(v(i)) * kInverse + kEps);
  };
  const auto p = [&](int64_t i) {
    return a.master.before(i) * kDecay - update(i);
  };
  const auto m_size = [&](int64_t i) {
    return std::abs(a.m.before(i)) + std::abs(a.scaled(i));
  };
  double error = worst(a.m, m, m_size);
  error = std::max(error, worst(a.v, v, v));
  error = std::max(error, worst(a.master, p, [&](int64_t i) {
                     const double part = std::sqrt(v(i)) * kInverse + kEps;
                     return std::abs(a.master.before(i)) +
                            m_size(i) * kStepSize / part;
                   }));
  error = std::max(error, model_error(a));
  judge(machine, name_of("adamw", t, off), error, a.equal_bits());
}

void check_sgd(Machine& machine, const Types& t, int64_t off) {
  constexpr double kLr = 0.01, kWeightDecay = 0.1, kMomentum = 0.9,
                   kDampening = 0.1;
  Arrays a(machine, t, off);
  kernels::SgdArgs args = {
      a.master.device(),
      a.model.device(),
      a.grad.device(),
      a.m.device(),
      reinterpret_cast<const kernels::StepScalars*>(a.on_gpu->data()),
      kCount,
      t.master,
      t.model,
      t.grad,
      t.state,
      kLr,
      kWeightDecay,
      kMomentum,
      kDampening,
      1,
      0,
      nullptr};
  machine.run(OpCode::kSgd, args);
  args.master = a.master.host();
  args.model = a.model.host();
  args.grad = a.grad.host();
  args.momentum_buffer = a.m.host();
  args.scalars = &a.scalars;
  kernels::run_cpu(OpCode::kSgd, &args);
  a.fetch();

  const auto g = [&](int64_t i) {
    return a.scaled(i) + kWeightDecay * a.master.before(i);
  };
  const auto buffer = [&](int64_t i) {
    return kMomentum * a.m.before(i) + (1 - kDampening) * g(i);
  };
  const auto size = [&](int64_t i) {
    return std::abs(a.scaled(i)) + std::abs(a.master.before(i)) +
           std::abs(a.m.before(i));
  };
  const auto p = [&](int64_t i) {
    return a.master.before(i) - kLr * (g(i) + kMomentum * buffer(i));
  };
  double error = worst(a.m, buffer, size);
  error = std::max(error, worst(a.master, p, size));
  error = std::max(error, model_error(a));
  judge(machine, name_of("sgd", t, off), error, a.equal_bits());
}

}  // namespace

void check_optimizers(Machine& machine) {
  for (const Types& t : kTypes) {
    for (int64_t off : {0, 1}) {
      check_adamw(machine, t, off);
      check_sgd(machine, t, off);
    }
  }
}

}  // namespace aliquot::gpu
