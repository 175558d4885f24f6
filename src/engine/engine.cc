// Building, planning and closing an engine.
#include "engine/engine.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace aliquot::engine {

Engine::Engine(std::shared_ptr<Context> context, std::shared_ptr<Device> device,
               std::shared_ptr<Mesh> mesh, std::string name,
               EngineConfig config)
    : context_(std::move(context)),
      device_(std::move(device)),
      mesh_(std::move(mesh)),
      name_(std::move(name)),
      config_(config) {
  int32_t rank = context_->rank;
  place_ = {mesh_->axis_size("dp_shard"), mesh_->axis_size("dp_replicate"),
            mesh_->coordinate("dp_shard", rank),
            mesh_->coordinate("dp_replicate", rank)};
  optimizers_.resize(1);
}

Result<int32_t> Engine::param_add(Param param) {
  if (planned_) {
    return make_error(ALQ_FAILED_PRECONDITION,
                      "engine {}: parameter \"{}\" comes after the plan; add "
                      "all parameters first",
                      name_, param.name);
  }
  if (!param_names_.insert(param.name).second) {
    return make_error(ALQ_ALREADY_EXISTS,
                      "engine {}: there is a parameter \"{}\" already; add a "
                      "tied one once and put it into both units",
                      name_, param.name);
  }
  if (optimizers_.size() <= static_cast<size_t>(param.optim_group)) {
    optimizers_.resize(static_cast<size_t>(param.optim_group) + 1);
  }
  model_.params.push_back(std::move(param));
  return static_cast<int32_t>(model_.params.size() - 1);
}

Result<int32_t> Engine::unit_add(Unit unit) {
  if (planned_) {
    return make_error(ALQ_FAILED_PRECONDITION,
                      "engine {}: unit \"{}\" comes after the plan; add all "
                      "units first",
                      name_, unit.name);
  }
  int32_t id = static_cast<int32_t>(model_.units.size());
  for (int32_t p : unit.params) {
    ALQ_TRY(check_param(p));
    std::vector<int32_t>& users = model_.params[static_cast<size_t>(p)].units;
    if (!users.empty() && users.back() == id) {
      return make_error(ALQ_INVALID_ARGUMENT,
                        "unit \"{}\": parameter {} is listed twice", unit.name,
                        p);
    }
    users.push_back(id);
  }
  model_.units.push_back(std::move(unit));
  return id;
}

Status Engine::unit_place(int64_t unit, const AxisMasks& masks) {
  if (planned_) {
    return make_error(ALQ_FAILED_PRECONDITION,
                      "engine {}: units are placed before the plan", name_);
  }
  ALQ_TRY(check_unit(unit));
  ALQ_TRY(check_masks(masks));
  model_.units[static_cast<size_t>(unit)].place = masks;
  return {};
}

Status Engine::optimizer_set(int32_t group, const alq_optimizer_desc& desc) {
  if (planned_) {
    return make_error(ALQ_FAILED_PRECONDITION,
                      "engine {}: optimizers are set before the plan", name_);
  }
  if (optimizers_.size() <= static_cast<size_t>(group)) {
    optimizers_.resize(static_cast<size_t>(group) + 1);
  }
  optimizers_[static_cast<size_t>(group)].desc = desc;
  return {};
}

const char* Engine::shard_axes_of(const Plan& plan) {
  return plan.placement.axes.two_axes ? "dp_shard" : "dp_replicate,dp_shard";
}

Status Engine::make_groups() {
  const char* shard_axes = shard_axes_of(plan_);
  ALQ_ASSIGN(groups_.gather, mesh_->group(shard_axes, "gather", deadline()));
  ALQ_ASSIGN(groups_.reduce, mesh_->group(shard_axes, "reduce", deadline()));
  ALQ_ASSIGN(groups_.leave,
             mesh_->group("dp_replicate,dp_shard", "leave", deadline()));
  groups_.replicate = groups_.assemble = nullptr;
  if (plan_.axes.replicas > 1) {
    ALQ_ASSIGN(groups_.replicate,
               mesh_->group("dp_replicate", "reduce", deadline()));
    ALQ_ASSIGN(groups_.assemble,
               mesh_->group("dp_replicate", "gather", deadline()));
  }
  return {};
}

// Ranks that planned different things would exchange garbage: compare first.
Status Engine::compare_plans(std::vector<PlanShare>* shares) {
  ALQ_ASSIGN(groups_.exchange,
             mesh_->group("dp_replicate,dp_shard", "exchange", deadline()));
  std::string text = fmt::format(
      "{} {} {} {} {} {} {} {}", plan_.desc.strategy, plan_.axes.shards,
      plan_.axes.replicas, plan_.microbatches, plan_.prefetch, plan_.max_open,
      plan_.desc.nesting == nullptr ? "" : plan_.desc.nesting,
      config_.accumulate_fast);
  text += fmt::format(" {} {} {} {} {} {} {} {} {}", plan_.desc.progress,
                      plan_.desc.memory, plan_.desc.phases, plan_.desc.reshard,
                      config_.grad_dtype, config_.accumulate_dtype,
                      config_.master_dtype, config_.loss_scale, config_.poison);
  for (const BundlePlan& b : plan_.bundles) {
    text += fmt::format("\n{} {} {} {} {}", extent_name(b.placement.params),
                        extent_name(b.placement.grads),
                        extent_name(b.placement.states), b.map, b.defer);
  }
  for (const Unit& u : model_.units) {
    text += fmt::format("\n{} {} {}", u.name, u.root, fmt::join(u.params, ","));
  }
  for (const Param& p : model_.params) {
    text += fmt::format("\n{} {} {} {} {} {} {} {}", p.name, p.dtype,
                        p.trainable, p.whole_rows, p.optim_group, p.bundle,
                        p.offset, fmt::join(p.shape, ","));
  }
  for (const Optimizer& o : optimizers_) {
    text += fmt::format("\n{} {} {} {} {} {} {} {}", o.desc.kind, o.desc.beta1,
                        o.desc.beta2, o.desc.eps, o.desc.momentum,
                        o.desc.dampening, o.desc.nesterov, o.desc.state_dtype);
  }
  PlanShare mine{XXH3_64bits(text.data(), text.size()), plan_.total_bytes(),
                 plan_.desc.cap_bytes};
  shares->resize(static_cast<size_t>(groups_.exchange->size()));
  Coll coll;
  coll.kind = CollKind::kAllGather;
  coll.src = &mine;
  coll.dst = shares->data();
  coll.count = sizeof mine;
  coll.dtype = ALQ_U8;
  coll.label = "plan";
  ALQ_TRY(groups_.exchange->issue(coll, nullptr, nullptr));
  std::vector<int32_t> differ;
  for (size_t r = 0; r < shares->size(); ++r) {
    if ((*shares)[r].hash != (*shares)[0].hash) {
      differ.push_back(groups_.exchange->ranks()[r]);
    }
  }
  if (differ.empty()) return {};
  return make_error(ALQ_RANK_MISMATCH,
                    "engine {}: {} {} planned another model or another plan "
                    "than rank {}; add the same parameters, units and "
                    "optimizers in the same order, and choose the same plan, "
                    "everywhere",
                    name_, differ.size() == 1 ? "rank" : "ranks",
                    fmt::join(differ, ", "), groups_.exchange->ranks()[0]);
}

// Shards are uneven and caps may differ: what is too much for one rank is
// refused on all, or the others would commit without it.
Status Engine::check_caps(const PlanInputs& in,
                          const std::vector<PlanShare>& shares) const {
  auto over = [](int64_t bytes, int64_t cap) { return cap > 0 && bytes > cap; };
  if (over(plan_.total_bytes(), plan_.desc.cap_bytes)) {
    return over_cap(in, plan_);
  }
  for (size_t r = 0; r < shares.size(); ++r) {
    if (!over(shares[r].bytes, shares[r].cap)) continue;
    int32_t rank = groups_.exchange->ranks()[r];
    return make_error(
               ALQ_RESOURCE_EXHAUSTED,
               "engine {}: the plan needs {} B on rank {}, the cap there "
               "is {} B ({} B would do here); that rank's error says "
               "what would fit",
               name_, shares[r].bytes, rank, shares[r].cap, plan_.total_bytes())
        .with_rank(rank);
  }
  return {};
}

Status Engine::plan(const alq_plan_desc& desc) {
  if (committed_) {
    return make_error(ALQ_FAILED_PRECONDITION,
                      "engine {}: the plan is committed", name_);
  }
  planned_ = false;
  PlanInputs in{&model_,
                &config_,
                &optimizers_,
                place_.dp_shard,
                place_.dp_replicate,
                place_.shard_index,
                place_.replica_index,
                mesh_->world()->abilities().common_memory};
  ALQ_ASSIGN(DataAxes axes, data_axes(in, desc));
  ALQ_TRY(model_.build_bundles(axes.shards, axes.replicas));
  ALQ_ASSIGN(plan_, make_plan(in, desc));
  plan_.desc.next = nullptr;
  std::vector<PlanShare> shares;
  ALQ_TRY(compare_plans(&shares));
  ALQ_TRY(make_groups());
  ALQ_TRY(check_caps(in, shares));
  plan_.desc.nesting = nullptr;  // the caller's string; parsed by now
  planned_ = true;
  return {};
}

Status Engine::check_slab(const void* slab) const {
  bool wants_slab = plan_.desc.memory == ALQ_MEMORY_SLAB;
  if (wants_slab != (slab != nullptr)) {
    return make_error(
        ALQ_INVALID_ARGUMENT, "engine {}: memory {} {} a slab", name_,
        wants_slab ? "SLAB needs" : "LEND and INTO take no",
        wants_slab ? fmt::format("of {} bytes;", plan_.arena_bytes) : "");
  }
  if (reinterpret_cast<uintptr_t>(slab) % 4096 != 0) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "engine {}: the slab is not 4096-byte aligned", name_);
  }
  return {};
}

Status Engine::commit(void* slab) {
  if (!planned_ || committed_) {
    return make_error(
        ALQ_FAILED_PRECONDITION, "engine {}: {}", name_,
        planned_ ? "committed already" : "call alq_engine_plan before commit");
  }
  ALQ_TRY(check_slab(slab));
  const bool asynchronous = device_->asynchronous();
  if (asynchronous) {
    int64_t bytes =
        static_cast<int64_t>(recorder_.capacity() * sizeof(trace::Span));
    ALQ_ASSIGN(recorded_, device_->allocate_host(bytes, "trace"));
    recorder_.use(reinterpret_cast<trace::Span*>(recorded_->data()));
  }
  ALQ_ASSIGN(step_memory_,
             StepMemory::create(device_.get(),
                                {groups_.exchange->size(), plan_.microbatches},
                                groups_.reduce->ranks(), optimizers_));
  ALQ_ASSIGN(decided_, device_->create_event());
  ALQ_ASSIGN(executor_, Executor::create(context_, device_, groups_, &model_,
                                         &plan_, &config_, &recorder_,
                                         step_memory_.get(), slab, deadline()));
  reads_peers_ = plan_.maps() ||
                 std::any_of(plan_.bundles.begin(), plan_.bundles.end(),
                             [](const BundlePlan& b) { return b.gathers; });
  // Whoever follows would have to issue the others' work on their streams.
  if (!asynchronous) {
    ALQ_ASSIGN(log_,
               CallLog::create(groups_.exchange,
                               1 + 2 * static_cast<int64_t>(optimizers_.size()),
                               deadline()));
  }
  core_ = std::make_unique<Core>(plan_.core_shape(model_));
  for (const Unit& unit : model_.units) {
    UnitViewArrays arrays;
    for (int32_t p : unit.params) {
      bool trainable = model_.params[static_cast<size_t>(p)].trainable;
      arrays.params.push_back(executor_->param(p));
      arrays.grads.push_back(trainable ? executor_->grad(p) : nullptr);
    }
    unit_names_.push_back(recorder_.name(unit.name));
    computing_.push_back({});
    arrays.no_grads.assign(unit.params.size(), nullptr);
    arrays.betas.assign(unit.params.size(), 0);
    views_.push_back(std::move(arrays));
  }
  ALQ_TRY(choose_progress());
  committed_ = true;
  return touch();
}

Status Engine::need_committed(const char* call) const {
  if (committed_ && !closed_) return {};
  return make_error(ALQ_FAILED_PRECONDITION, "engine {}: {} {}", name_, call,
                    closed_ ? "after close" : "needs alq_engine_commit first");
}

Status Engine::check_unit(int64_t unit) const {
  if (unit >= 0 && unit < static_cast<int64_t>(model_.units.size())) return {};
  return make_error(ALQ_OUT_OF_RANGE, "engine {}: no unit {}; there are {}",
                    name_, unit, model_.units.size());
}

Status Engine::check_param(int64_t param) const {
  if (param >= 0 && param < static_cast<int64_t>(model_.params.size())) {
    return {};
  }
  return make_error(ALQ_OUT_OF_RANGE,
                    "engine {}: no parameter {}; there are {}", name_, param,
                    model_.params.size());
}

Status Engine::set_steps(int64_t steps) {
  ALQ_TRY(need_committed("step_set"));
  constexpr int64_t kMost = int64_t{1} << 53;  // exact as a double
  if (steps < 0 || steps > kMost || core_->in_microbatch() ||
      microbatch_ != 0) {
    return make_error(ALQ_FAILED_PRECONDITION,
                      "engine {}: step_set({}) takes a count of 0 to 2^53, "
                      "between steps",
                      name_, steps);
  }
  ALQ_TRY(record({CallKind::kStepSet, 0, 0, steps}));
  ALQ_TRY(executor_->set_steps(steps));
  steps_ = steps;
  outcome_unknown_ = false;
  return {};
}

std::string Engine::report() const {
  nlohmann::ordered_json j;
  j["engine"] = name_;
  j["steps"] = steps_;
  j["replans"] = replans_;
  if (committed_) {
    const Traffic& traffic = executor_->traffic();
    const ExposedTime& exposed = executor_->exposed();
    j["gathers"] = traffic.gathers;
    j["gather_bytes"] = traffic.gather_bytes;
    j["reductions"] = traffic.reductions;
    j["reduce_bytes"] = traffic.reduce_bytes;
    j["exposed_gather_s"] = static_cast<double>(exposed.gather_ns) * 1e-9;
    j["exposed_reduce_s"] = static_cast<double>(exposed.reduce_ns) * 1e-9;
    j["late_gathers"] = exposed.late_gathers;
    j["slow_gathers"] = exposed.slow_gathers;
    j["small_gathers"] = exposed.small_gathers;
    j["grad_slot_waits"] = exposed.slot_waits;
    j["order_repairs"] = core_->repairs();
    j["prefetches"] = core_->prefetches();
    j["peak_bytes"] = plan_.total_bytes();
    j["progress_thread"] = progress_.on;
    j["progress_reason"] = progress_.why;
    if (progress_.hidden >= 0) j["progress_hidden"] = progress_.hidden;
  }
  return j.dump(2);
}

void Engine::retire(const std::shared_ptr<Engine>& self) {
  if (executor_ == nullptr) return;
  executor_->retire(self);
  closed_ = true;
  log_.reset();
  groups_ = {};
  mesh_.reset();
  device_.reset();
}

Status Engine::close(Deadline deadline) {
  if (!committed_ || closed_) {
    closed_ = true;
    return {};
  }
  ALQ_TRY(record(OtherCall::kClose));
  ALQ_TRY(executor_->drain(deadline));
  Coll barrier;
  barrier.kind = CollKind::kBarrier;
  barrier.label = "engine close";
  int64_t timeout = groups_.exchange->timeout_ns();
  groups_.exchange->set_timeout_ns(std::max<int64_t>(deadline.left(), 1));
  Status met = groups_.exchange->issue(barrier, nullptr, nullptr);
  groups_.exchange->set_timeout_ns(timeout);
  ALQ_TRY(std::move(met));
  closed_ = true;
  return catch_up();
}

}  // namespace aliquot::engine
