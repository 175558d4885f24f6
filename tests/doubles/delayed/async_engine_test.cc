// The engine over a device whose streams run by themselves: steps that the host
// only enqueues give the bits of the CPU, whatever the delays; their outcomes
// and errors come when the host waits; and nothing in a step waits.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>

#include "doubles/delayed/delayed_device.h"
#include "engine/engine.h"
#include "support/ranks.h"

namespace aliquot::engine {
namespace {

using test::DelayedDevice;
using test::options;
using test::Rank;
using test::RankKind;
using test::RanksResult;
using test::run_ranks;

constexpr int32_t kUnits = 3;
// Uneven over 2 and 3 ranks, with an alignment gap between them.
constexpr int64_t kCounts[] = {37, 130};

struct Case {
  const char* mesh;
  int32_t ranks;
  int32_t strategy;
  int32_t microbatches = 2;
  int32_t optimizer = ALQ_OPTIM_ADAMW;
  Dtype dtype = ALQ_F32;
  int32_t gather = ALQ_GATHER_COPY;
  int32_t defer = ALQ_DEFER_DEFAULT;
  int32_t nan_step = -1;  // rank 1 contributes one to it
  double clip = 0.25;
};

const Case kCases[] = {
    {"", 1, ALQ_STRATEGY_SINGLE},
    {"", 2, ALQ_STRATEGY_DDP},
    {"", 2, ALQ_STRATEGY_DDP, 1, ALQ_OPTIM_SGD},
    {"", 2, ALQ_STRATEGY_ZERO1, 2, ALQ_OPTIM_ADAMW, ALQ_BF16},
    {"", 2, ALQ_STRATEGY_ZERO2, 2, ALQ_OPTIM_SGD},
    {"", 3, ALQ_STRATEGY_FSDP, 1},
    {"", 2, ALQ_STRATEGY_FSDP, 2, ALQ_OPTIM_ADAMW, ALQ_BF16},
    {"", 2, ALQ_STRATEGY_FSDP, 2, ALQ_OPTIM_ADAMW, ALQ_F32, ALQ_GATHER_MAP},
    {"", 2, ALQ_STRATEGY_FSDP, 2, ALQ_OPTIM_ADAMW, ALQ_F32, ALQ_GATHER_COPY,
     ALQ_DEFER_LAST},
    {"", 2, ALQ_STRATEGY_FSDP, 2, ALQ_OPTIM_ADAMW, ALQ_F32, ALQ_GATHER_COPY,
     ALQ_DEFER_DEFAULT, 1},
    {"", 2, ALQ_STRATEGY_DDP, 1, ALQ_OPTIM_ADAMW, ALQ_F32, ALQ_GATHER_COPY,
     ALQ_DEFER_DEFAULT, 0},
    {"dp_replicate=2,dp_shard=2", 4, ALQ_STRATEGY_HSDP},
};

// One rank's engine and a host whose whole computing is on a stream.
class Host {
 public:
  Host(Rank& rank, std::shared_ptr<CpuDevice> device, const Case& c,
       std::shared_ptr<Group> world)
      : rank_(rank), device_(std::move(device)), c_(c) {
    auto axes = parse_mesh(c.mesh, rank.size);
    auto mesh = std::make_shared<Mesh>(std::move(world), *axes);
    EngineConfig config;
    config.loss_scale = 1;
    config.poison = DelayedDevice::seed % 2 == 1;
    engine = std::make_shared<Engine>(rank.context, device_, mesh, "e", config);
    build();
  }
  ~Host() { engine->retire(engine); }

  void check(const Status& got, const char* what) { rank_.check_ok(got, what); }

  void step(int32_t number, Stream* stream, alq_step_report* report,
            double lr = 0.1) {
    for (int32_t m = 0; m < c_.microbatches; ++m) {
      double scale = 0;
      check(engine->microbatch_begin(ALQ_TRAIN, 1.0 + rank_.rank,
                                     m + 1 == c_.microbatches, &scale),
            "microbatch_begin");
      for (int32_t u = 0; u < kUnits; ++u) forward(u, stream);
      for (int32_t u = kUnits; u-- > 0;) backward(u, number, m, stream);
      check(engine->microbatch_end(stream), "microbatch_end");
    }
    status = take(step_stream != nullptr ? step_stream : stream, report, lr);
  }

  Status take(Stream* stream, alq_step_report* report, double lr) {
    double rates[] = {lr, lr / 2}, decays[] = {0.01, 0};
    alq_step_desc desc = {};
    desc.lr = rates;
    desc.weight_decay = decays;
    desc.n_groups = 2;
    desc.clip_norm = c_.clip;
    return engine->step(desc, stream, report);
  }

  // Everything there is to read.
  std::vector<double> values() {
    std::vector<double> all;
    for (int32_t p = 0; p < 2 * kUnits; ++p) {
      for (int32_t what : {ALQ_VALUE, ALQ_STATE_0, ALQ_STATE_1}) {
        if (what == ALQ_STATE_1 && c_.optimizer != ALQ_OPTIM_ADAMW) continue;
        size_t at = all.size();
        int64_t n = kCounts[p % 2];
        all.resize(at + static_cast<size_t>(n));
        check(engine->param_read(p, what, all.data() + at, 0, n, ALQ_F64),
              "param_read");
      }
    }
    return all;
  }

  std::shared_ptr<Engine> engine;
  Stream* step_stream = nullptr;  // null: that of the computing
  Status status;

 private:
  void build() {
    for (int32_t p = 0; p < 2 * kUnits; ++p) {
      Param param;
      param.name = fmt::format("p{}", p);
      param.count = kCounts[p % 2];
      param.shape = {param.count};
      param.dtype = c_.dtype;
      param.trainable = true;
      param.optim_group = p % 2;
      check(engine->param_add(param).status(), "param_add");
    }
    for (int32_t u = 0; u < kUnits; ++u) {
      Unit unit;
      unit.name = fmt::format("u{}", u);
      unit.params = {2 * u, 2 * u + 1};
      check(engine->unit_add(unit).status(), "unit_add");
    }
    for (int32_t g : {0, 1}) {
      alq_optimizer_desc o = {};
      o.kind = c_.optimizer;
      o.beta1 = 0.9, o.beta2 = 0.99, o.eps = 1e-8, o.momentum = 0.5;
      check(engine->optimizer_set(g, o), "optimizer_set");
    }
    alq_plan_desc plan = {};
    plan.strategy = c_.strategy;
    plan.microbatches = c_.microbatches;
    plan.gather = c_.gather;
    plan.defer = c_.defer;
    check(engine->plan(plan), "plan");
    check(engine->commit(nullptr), "commit");
    for (int32_t p = 0; p < 2 * kUnits; ++p) {
      std::vector<double> data;
      for (int64_t i = 0; i < kCounts[p % 2]; ++i) {
        data.push_back(std::sin(static_cast<double>(p * 1000 + i)));
      }
      check(engine->param_write(p, ALQ_VALUE, data.data(), 0, kCounts[p % 2],
                                ALQ_F64),
            "param_write");
    }
    // What ranks add to gradients, per step and microbatch.
    inputs_.resize(64 * 256);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      inputs_[i] = std::cos(static_cast<float>(i) * 0.37f +
                            static_cast<float>(rank_.rank));
    }
    work_.resize(kUnits * 2 * 256);
  }

  template <typename Args>
  void launch(Stream* stream, kernels::OpCode op, const Args& args) {
    check(device_->launch(stream, op, &args, sizeof args), "launch");
  }

  alq_unit_view begin(int32_t u, int32_t pass, Stream* stream) {
    alq_unit_view view = {};
    check(engine->unit_begin(u, pass, stream, &view), "unit_begin");
    return view;
  }

  // Keeps what it reads for backward.
  void forward(int32_t u, Stream* stream) {
    alq_unit_view view = begin(u, ALQ_PASS_F, stream);
    for (int32_t i : {0, 1}) {
      launch(stream, kernels::OpCode::kCast,
             kernels::CastArgs{work_of(u, i), view.params[i], kCounts[i],
                               ALQ_F32, c_.dtype, 1.0});
    }
    check(engine->unit_end(u, ALQ_PASS_F, stream), "unit_end");
  }

  // grad = forward's parameter + this one's + an input of the rank.
  void backward(int32_t u, int32_t number, int32_t m, Stream* stream) {
    alq_unit_view view = begin(u, ALQ_PASS_B, stream);
    for (int32_t i : {0, 1}) {
      float* sum = work_of(u, i);
      launch(stream, kernels::OpCode::kAccumulate,
             kernels::AccumulateArgs{sum, view.params[i], kCounts[i], ALQ_F32,
                                     c_.dtype});
      size_t input = static_cast<size_t>(number * 4 + m) % 63 * 256;
      launch(stream, kernels::OpCode::kAccumulate,
             kernels::AccumulateArgs{sum, &inputs_[input], kCounts[i], ALQ_F32,
                                     ALQ_F32});
      if (number == c_.nan_step && m == 0 && u == 1 && i == 1 &&
          rank_.rank == 1) {
        launch(stream, kernels::OpCode::kFill,
               kernels::FillArgs{sum + 5, 4, 0xff, 1});
      }
      launch(stream, kernels::OpCode::kCast,
             kernels::CastArgs{view.grads[i], sum, kCounts[i], c_.dtype,
                               ALQ_F32, 1.0});
      check(engine->grad_ready(2 * u + i, stream), "grad_ready");
    }
    check(engine->unit_end(u, ALQ_PASS_B, stream), "unit_end");
  }

  float* work_of(int32_t u, int32_t i) {
    return &work_[static_cast<size_t>(u * 2 + i) * 256];
  }

  Rank& rank_;
  std::shared_ptr<CpuDevice> device_;
  const Case c_;
  std::vector<float> inputs_, work_;
};

constexpr int32_t kSteps = 5;

// The values after all steps; stream null: on the CPU, which waits in each.
std::vector<double> train(Rank& rank, const Case& c, bool delayed) {
  std::vector<double> values;
  auto* device = dynamic_cast<DelayedDevice*>(rank.device.get());
  rank.check((device != nullptr) == delayed, "the device");
  Host host(rank, rank.device, c, rank.group);
  std::shared_ptr<Stream> stream, other;
  if (delayed) {
    stream = *rank.device->create_stream("caller");
    other = *rank.device->create_stream("other");
    if (DelayedDevice::seed / 2 % 2 == 1) host.step_stream = other.get();
  }
  int64_t waits = delayed ? device->host_waits() : 0;
  for (int32_t s = 0; s < kSteps; ++s) {
    host.step(s, stream.get(), nullptr);
    rank.check_ok(host.status, "step");
    if (s == 0) waits = delayed ? device->host_waits() : 0;
  }
  if (delayed) {
    rank.check(device->host_waits() == waits, "a step waited");
  }
  values = host.values();
  alq_step_report report = {};
  report.struct_size = sizeof report;
  host.step(kSteps, stream.get(), &report);
  rank.check_ok(host.status, "step with a report");
  values.push_back(report.grad_norm);
  values.push_back(static_cast<double>(report.step));
  values.push_back(report.weight_sum);
  for (double v : host.values()) values.push_back(v);
  rank.check_ok(host.engine->close(rank.context->deadline(0)), "close");
  return values;
}

void compare(const Case& c, int32_t schedules) {
  std::vector<std::vector<double>> expected(static_cast<size_t>(c.ranks));
  DelayedDevice::enabled = false;
  RanksResult cpu =
      run_ranks(options(c.ranks, RankKind::kThreads), [&](Rank& rank) {
        expected[static_cast<size_t>(rank.rank)] = train(rank, c, false);
      });
  BOOST_TEST_REQUIRE(cpu.ok(), cpu.text());
  for (int32_t seed = 0; seed < schedules; ++seed) {
    DelayedDevice::enabled = true;
    DelayedDevice::seed = static_cast<unsigned>(seed);
    RanksResult run =
        run_ranks(options(c.ranks, RankKind::kThreads), [&](Rank& rank) {
          std::vector<double> got = train(rank, c, true);
          const auto& want = expected[static_cast<size_t>(rank.rank)];
          rank.check(got.size() == want.size(), "how much there is");
          for (size_t i = 0; i < got.size() && i < want.size(); ++i) {
            if (std::memcmp(&got[i], &want[i], sizeof(double)) == 0) continue;
            rank.check(false, fmt::format("number {} of {}: {} for {}", i,
                                          got.size(), got[i], want[i]));
            break;
          }
        });
    BOOST_TEST(run.ok(), "schedule " << seed << ": " << run.text());
  }
}

BOOST_AUTO_TEST_CASE(steps_have_the_bits_of_the_cpu) {
  const int32_t schedules = test::kSanitized ? 1 : 4;
  for (const Case& c : kCases) {
    BOOST_TEST_CONTEXT("case " << &c - kCases) { compare(c, schedules); }
  }
}

// Different rates: the step is refused on the device, and says so when the host
// waits; it has changed nothing, and the next one is taken.
BOOST_AUTO_TEST_CASE(errors_come_when_the_host_waits) {
  DelayedDevice::enabled = true;
  for (bool asks : {false, true}) {
    RanksResult run =
        run_ranks(options(2, RankKind::kThreads), [&](Rank& rank) {
          Case c{"", 2, ALQ_STRATEGY_FSDP};
          Host host(rank, rank.device, c, rank.group);
          std::shared_ptr<Stream> stream = *rank.device->create_stream("c");
          std::vector<double> before = host.values();
          alq_step_report report = {};
          report.struct_size = sizeof report;
          host.step(0, stream.get(), asks ? &report : nullptr,
                    0.1 * (1 + rank.rank));
          if (!asks) {
            rank.check_ok(host.status, "a step that waits for nothing");
            double one = 0;
            host.status =
                host.engine->param_read(0, ALQ_VALUE, &one, 0, 1, ALQ_F64);
          }
          rank.check(host.status.code() == ALQ_RANK_MISMATCH, "the error");
          rank.check(host.status.rank() == 1, "whose");
          rank.check(before == host.values(), "nothing was changed");
          host.step(1, stream.get(), &report);
          rank.check_ok(host.status, "the next step");
          rank.check(report.step == 1, "the first one taken");
          rank.check(before != host.values(), "it was taken");
          rank.check_ok(host.engine->set_steps(41), "set_steps");
          host.step(2, stream.get(), nullptr);
          host.step(3, stream.get(), &report);
          rank.check(report.step == 43, "steps counted on the device");
          alq_join_report joined = {};
          rank.check(
              host.engine->join(false, &joined).code() == ALQ_UNSUPPORTED,
              "join");
        });
    BOOST_TEST(run.ok(), run.text());
  }
}

// The outcome of a step that nobody asked about: skipped, and named when asked.
BOOST_AUTO_TEST_CASE(skipped_steps_are_named) {
  DelayedDevice::enabled = true;
  RanksResult run = run_ranks(options(2, RankKind::kThreads), [&](Rank& rank) {
    Case c{"", 2, ALQ_STRATEGY_ZERO2};
    c.nan_step = 0;
    Host host(rank, rank.device, c, rank.group);
    std::shared_ptr<Stream> stream = *rank.device->create_stream("c");
    alq_step_report report = {};
    report.struct_size = sizeof report;
    host.step(0, stream.get(), &report);
    rank.check_ok(host.status, "step");
    rank.check(report.skipped == 1 && report.step == 0, "skipped");
    rank.check(report.bad_param == 3, "bad_param");
    rank.check(report.bad_rank == 1 && report.bad_microbatch == 0, "whose");
    host.step(0, stream.get(), nullptr);
    host.step(1, stream.get(), &report);
    rank.check(report.skipped == 0 && report.step == 1, "the next one");
  });
  BOOST_TEST(run.ok(), run.text());
}

}  // namespace
}  // namespace aliquot::engine
