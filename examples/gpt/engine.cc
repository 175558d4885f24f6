#include "engine.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

namespace gpt {
namespace {

enum OptimGroup : int32_t { kDecay, kNoDecay, kGroups };

int32_t pass_of(Pass pass) {
  switch (pass) {
    case Pass::kForward: return ALQ_PASS_F;
    case Pass::kForwardNoGrad: return ALQ_PASS_F_NOGRAD;
    case Pass::kRecompute: return ALQ_PASS_R;
    case Pass::kBackward: return ALQ_PASS_B;
  }
  return 0;
}

nlohmann::json report_of(const alq_engine* engine) {
  Status status;
  size_t need = 0;
  status.check(alq_engine_report(engine, nullptr, 0, &need, status));
  std::string text(need, '\0');
  status.check(
      alq_engine_report(engine, text.data(), text.size(), &need, status));
  return nlohmann::json::parse(text.c_str());
}

}  // namespace

Engine::Engine(Session& session, const Options& options, const Layout& layout,
               int64_t microbatches)
    : session_(session), plan_(make_desc<alq_plan_report>()) {
  Status status;
  auto desc = make_desc<alq_engine_desc>();
  desc.name = "gpt";
  desc.accumulate = options.accumulate;
  desc.poison = options.poison ? 1 : 0;
  alq_engine* engine = nullptr;
  status.check(alq_engine_create(session.mesh(), &desc, &engine, status));
  engine_.reset(engine);
  add_params(layout, options.dtype);
  add_units(layout, options.replicate_root);
  set_optimizers();
  plan(options, microbatches);
}

void Engine::add_params(const Layout& layout, int32_t dtype) {
  Status status;
  for (const ParamSpec& spec : layout.params) {
    auto desc = make_desc<alq_param_desc>();
    desc.flags = ALQ_PARAM_TRAINABLE;
    desc.name = spec.name.c_str();
    desc.shape = spec.shape.data();
    desc.ndim = static_cast<int32_t>(spec.shape.size());
    desc.dtype = dtype;
    desc.optim_group = spec.decay ? kDecay : kNoDecay;
    int64_t id = 0;
    status.check(alq_param_add(engine_.get(), &desc, &id, status));
    params_.push_back(id);
  }
}

void Engine::add_units(const Layout& layout, bool replicate_root) {
  Status status;
  for (const UnitSpec& spec : layout.units) {
    std::vector<int64_t> ids;
    for (const int64_t p : spec.params) {
      ids.push_back(params_[static_cast<size_t>(p)]);
    }
    int64_t id = 0;
    status.check(alq_unit_add(engine_.get(), spec.name.c_str(), ids.data(),
                              static_cast<int64_t>(ids.size()),
                              spec.root ? ALQ_UNIT_ROOT : 0, &id, status));
    if (spec.root && replicate_root) {
      status.check(alq_unit_place(engine_.get(), id, ALQ_AXIS_NONE,
                                  ALQ_AXIS_NONE, ALQ_AXIS_NONE, status));
    }
    units_.push_back(id);
    unit_params_.push_back(std::move(ids));
  }
}

void Engine::set_optimizers() {
  Status status;
  auto desc = make_desc<alq_optimizer_desc>();
  desc.kind = ALQ_OPTIM_ADAMW;
  desc.beta1 = 0.9;
  desc.beta2 = 0.95;
  desc.eps = 1e-8;
  for (int32_t group = 0; group < kGroups; ++group) {
    status.check(alq_optimizer_set(engine_.get(), group, &desc, status));
  }
}

void Engine::plan(const Options& options, int64_t microbatches) {
  Status status;
  auto desc = make_desc<alq_plan_desc>();
  desc.strategy = options.strategy;
  desc.microbatches = static_cast<int32_t>(microbatches);
  desc.prefetch = options.prefetch;
  desc.defer = options.defer;
  desc.gather = options.gather;
  desc.nesting = options.nesting.empty() ? nullptr : options.nesting.c_str();
  status.check(alq_engine_plan(engine_.get(), &desc, &plan_, status));
  status.check(alq_engine_commit(engine_.get(), nullptr, status));
}

UnitView Engine::begin(int64_t unit, Pass pass) {
  Status status;
  auto view = make_desc<alq_unit_view>();
  status.check(alq_unit_begin(engine_.get(), units_[static_cast<size_t>(unit)],
                              pass_of(pass), session_.stream(), &view, status));
  return {view.params, view.grads, view.betas};
}

void Engine::end(int64_t unit, Pass pass) {
  Status status;
  status.check(alq_unit_end(engine_.get(), units_[static_cast<size_t>(unit)],
                            pass_of(pass), session_.stream(), status));
}

void Engine::ready(int64_t unit, int64_t index) {
  Status status;
  const auto& ids = unit_params_[static_cast<size_t>(unit)];
  status.check(alq_grad_ready(engine_.get(), ids[static_cast<size_t>(index)],
                              session_.stream(), status));
}

double Engine::begin_training(double weight, bool last) {
  Status status;
  double scale = 0;
  status.check(alq_microbatch_begin(engine_.get(), ALQ_TRAIN, weight,
                                    last ? 1 : 0, &scale, status));
  return scale;
}

void Engine::begin_evaluation() {
  Status status;
  double unused = 0;
  status.check(
      alq_microbatch_begin(engine_.get(), ALQ_EVAL, 0, 1, &unused, status));
}

void Engine::end_microbatch() {
  Status status;
  status.check(alq_microbatch_end(engine_.get(), session_.stream(), status));
}

alq_step_report Engine::step(double lr, const Options& options) {
  Status status;
  const double lrs[kGroups] = {lr, lr};
  const double decays[kGroups] = {options.weight_decay, 0};
  auto desc = make_desc<alq_step_desc>();
  desc.lr = lrs;
  desc.weight_decay = decays;
  desc.n_groups = kGroups;
  desc.clip_norm = options.clip;
  auto report = make_desc<alq_step_report>();
  status.check(
      alq_step(engine_.get(), &desc, session_.stream(), &report, status));
  return report;
}

double Engine::exposed_seconds() const {
  const auto report = report_of(engine_.get());
  return report.value("exposed_gather_s", 0.0) +
         report.value("exposed_reduce_s", 0.0);
}

std::string Engine::progress_text() const {
  const auto report = report_of(engine_.get());
  std::string text =
      fmt::format("progress thread {} ({}",
                  report.value("progress_thread", false) ? "on" : "off",
                  report.value("progress_reason", ""));
  if (report.contains("progress_hidden")) {
    text += fmt::format(": hides {:.0f} % of a copy",
                        100 * report.value("progress_hidden", 0.0));
  }
  return text + ")";
}

void make_folder(const std::string& folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) {
    throw Error(fmt::format("--trace {}: {}", folder, failed.message()));
  }
}

void Engine::write_trace(const std::string& folder) {
  Status status;
  status.check(
      alq_engine_trace_write(engine_.get(), folder.c_str(), -1, status));
}

void Engine::close() {
  Status status;
  status.check(alq_engine_close(engine_.get(), 0, status));
}

}  // namespace gpt
