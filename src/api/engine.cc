// Engine: building and planning.  Running it is in step.cc.
#include <algorithm>
#include <cmath>

#include "api/guard.h"
#include "api/state.h"

using namespace aliquot;
using namespace aliquot::api;
using engine::EngineConfig;

namespace {

bool real(double x) { return std::isfinite(x); }

Status read_config(const alq_engine_desc& d, EngineConfig* config) {
  if (d.flags != 0 || d.next != nullptr ||
      (d.hints != nullptr && d.hints[0] != 0)) {
    return make_error(ALQ_UNIMPLEMENTED,
                      "alq_engine_desc: flags, extension blocks and hints have "
                      "no meaning in this version; leave them zero");
  }
  for (alq_dtype dtype : {d.grad_dtype, d.accumulate_dtype, d.master_dtype}) {
    if (dtype != 0 && !is_float(dtype)) {
      return make_error(ALQ_INVALID_ARGUMENT,
                        "alq_engine_desc: dtype {} ({}) is no floating type",
                        dtype, dtype_name(dtype));
    }
  }
  if (d.master_dtype != 0 && dtype_size(d.master_dtype) < 4) {
    return make_error(ALQ_UNSUPPORTED, "master copies in {}: use f32 or f64",
                      dtype_name(d.master_dtype));
  }
  if (d.determinism < 0 || d.determinism > ALQ_DETERMINISM_FAST ||
      d.accumulate < 0 || d.accumulate > ALQ_ACCUMULATE_FAST || d.poison > 1 ||
      !real(d.loss_scale) || d.loss_scale < 0) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "alq_engine_desc: determinism {}, accumulate {}, poison "
                      "{} or loss_scale {} is out of range",
                      d.determinism, d.accumulate, d.poison, d.loss_scale);
  }
  config->grad_dtype = d.grad_dtype;
  config->accumulate_dtype = d.accumulate_dtype;
  config->master_dtype = d.master_dtype;
  config->accumulate_fast = d.accumulate == ALQ_ACCUMULATE_FAST;
  config->poison = d.poison != 0;
  config->loss_scale = d.loss_scale == 0 ? 1 : d.loss_scale;
  return {};
}

Status read_param(const alq_param_desc& d, engine::Param* param) {
  if (d.name == nullptr || d.name[0] == 0) {
    return make_error(ALQ_INVALID_ARGUMENT, "a parameter needs a name");
  }
  param->name = d.name;
  if ((d.flags & ~(ALQ_PARAM_TRAINABLE | ALQ_PARAM_WHOLE_ROWS)) != 0) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "parameter \"{}\": unknown flags {:#x}", d.name, d.flags);
  }
  param->trainable = (d.flags & ALQ_PARAM_TRAINABLE) != 0;
  param->whole_rows = (d.flags & ALQ_PARAM_WHOLE_ROWS) != 0;
  param->dtype = d.dtype;
  if (dtype_size(d.dtype) == 0 || (param->trainable && !is_float(d.dtype))) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "parameter \"{}\": dtype {} ({}) {}", d.name, d.dtype,
                      dtype_name(d.dtype),
                      dtype_size(d.dtype) == 0
                          ? "does not exist"
                          : "can not be trained; use f64, f32, f16 or bf16");
  }
  constexpr int32_t kMaxDims = 16, kMaxGroups = 1024;
  if (d.ndim < 0 || d.ndim > kMaxDims || (d.ndim > 0 && d.shape == nullptr) ||
      d.optim_group < 0 || d.optim_group >= kMaxGroups) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "parameter \"{}\": {} dims{} and optimizer group {}; "
                      "there are up to {} dims and {} groups",
                      d.name, d.ndim,
                      d.shape == nullptr ? " without shape" : "", d.optim_group,
                      kMaxDims, kMaxGroups);
  }
  param->optim_group = d.optim_group;
  int64_t count = 1;
  for (int32_t i = 0; i < d.ndim; ++i) {
    constexpr int64_t kMaxCount = int64_t{1} << 48;
    if (d.shape[i] < 0 || d.shape[i] > kMaxCount ||
        (d.shape[i] > 0 && count > kMaxCount / d.shape[i])) {
      return make_error(ALQ_INVALID_ARGUMENT,
                        "parameter \"{}\": dim {} is {}; dims are at least 0 "
                        "and their product at most 2^48",
                        d.name, i, d.shape[i]);
    }
    count *= d.shape[i];
    param->shape.push_back(d.shape[i]);
  }
  param->count = count;
  return {};
}

Status check_optimizer(const alq_optimizer_desc& d) {
  bool known = d.kind == ALQ_OPTIM_NONE || d.kind == ALQ_OPTIM_ADAMW ||
               d.kind == ALQ_OPTIM_SGD;
  if (!known || d.flags != 0) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "unknown optimizer {} (flags {:#x})", d.kind, d.flags);
  }
  if (d.kind == ALQ_OPTIM_ADAMW &&
      !(d.beta1 >= 0 && d.beta1 < 1 && d.beta2 >= 0 && d.beta2 < 1 &&
        d.eps > 0)) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "AdamW: beta1 {} and beta2 {} must be in [0, 1) and eps "
                      "{} above 0",
                      d.beta1, d.beta2, d.eps);
  }
  bool sgd_ok = real(d.momentum) && d.momentum >= 0 && real(d.dampening) &&
                (d.nesterov == 0 ||
                 (d.nesterov == 1 && d.momentum > 0 && d.dampening == 0));
  if (d.kind == ALQ_OPTIM_SGD && !sgd_ok) {
    return make_error(
        ALQ_INVALID_ARGUMENT,
        "SGD: momentum {} must not be negative; nesterov {} needs "
        "momentum and no dampening ({})",
        d.momentum, d.nesterov, d.dampening);
  }
  if (d.state_dtype != 0 &&
      (!is_float(d.state_dtype) || dtype_size(d.state_dtype) < 4)) {
    return make_error(ALQ_UNSUPPORTED, "optimizer states in {}: use f32 or f64",
                      dtype_name(d.state_dtype));
  }
  return {};
}

Status check_plan(const alq_plan_desc& d) {
  if (d.flags != 0 || d.next != nullptr) {
    return make_error(ALQ_UNIMPLEMENTED,
                      "alq_plan_desc: flags {:#x} and extension blocks are not "
                      "known here",
                      d.flags);
  }
  if (d.strategy != ALQ_STRATEGY_CUSTOM &&
      (d.param_axes | d.grad_axes | d.state_axes) != 0) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "alq_plan_desc: axis masks {:#x}, {:#x}, {:#x} go with "
                      "ALQ_STRATEGY_CUSTOM only, not with strategy {}",
                      d.param_axes, d.grad_axes, d.state_axes, d.strategy);
  }
  constexpr uint32_t kPhases =
      ALQ_PHASE_TRAIN | ALQ_PHASE_EVAL | ALQ_PHASE_HOLD_ALL;
  if ((d.phases & ~kPhases) != 0 || d.microbatches < 0 ||
      d.microbatches > 1'000'000 || d.prefetch > 1024 || d.max_open < 0 ||
      d.max_open > 65536 || d.reshard < 0 || d.reshard > 2 || d.memory < 0 ||
      d.memory > ALQ_MEMORY_INTO || d.gather < 0 || d.gather > ALQ_GATHER_MAP ||
      d.progress < 0 || d.progress > ALQ_PROGRESS_ON || d.cap_bytes < 0) {
    return make_error(
        ALQ_INVALID_ARGUMENT,
        "alq_plan_desc: a field is out of range: phases {:#x}, microbatches "
        "{}, "
        "prefetch {}, max_open {}, reshard {}, memory {}, gather {}, progress "
        "{}, cap_bytes {}",
        d.phases, d.microbatches, d.prefetch, d.max_open, d.reshard, d.memory,
        d.gather, d.progress, d.cap_bytes);
  }
  return {};
}

int64_t bytes_of(const engine::Plan& plan, engine::Owner owner) {
  return plan.by_owner[static_cast<size_t>(owner)];
}

alq_plan_report report_of(const engine::Plan& plan,
                          const engine::Model& model) {
  using engine::Owner;
  alq_plan_report r = {};
  r.total_bytes = plan.total_bytes();
  r.param_bytes = bytes_of(plan, Owner::kParam);
  r.master_bytes = bytes_of(plan, Owner::kMaster);
  r.slot_bytes = bytes_of(plan, Owner::kSlot);
  r.grad_bytes = bytes_of(plan, Owner::kGrad);
  r.accum_bytes = bytes_of(plan, Owner::kAccum);
  r.state_bytes = bytes_of(plan, Owner::kState);
  r.staging_bytes = bytes_of(plan, Owner::kStaging);
  r.gather_bytes_per_step = plan.gather_bytes;
  r.reduce_bytes_per_step = plan.reduce_bytes;
  r.units = static_cast<int64_t>(model.units.size());
  r.params = static_cast<int64_t>(model.params.size());
  return r;
}

}  // namespace

alq_status alq_engine_create(alq_mesh* mesh, const alq_engine_desc* desc,
                             alq_engine** out, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_TRY(check_out(out, "engine"));
    *out = nullptr;
    ALQ_ASSIGN(MeshState * state, resolve(mesh));
    alq_engine_desc known = {};
    if (desc != nullptr) ALQ_TRY(read_struct("alq_engine_desc", desc, &known));
    EngineConfig config;
    ALQ_TRY(read_config(known, &config));
    auto engine = std::make_shared<EngineState>();
    engine->ctx = state->ctx;
    engine->engine = std::make_shared<engine::Engine>(
        state->ctx->context, state->ctx->device, state->mesh,
        known.name == nullptr ? "engine" : known.name, config);
    *out = pool<alq_engine>().make(std::move(engine));
    return {};
  });
}

alq_status alq_param_add(alq_engine* engine, const alq_param_desc* desc,
                         int64_t* id, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineState * state, resolve(engine));
    alq_param_desc known = {};
    ALQ_TRY(read_struct("alq_param_desc", desc, &known));
    engine::Param param;
    ALQ_TRY(read_param(known, &param));
    ALQ_ASSIGN(int32_t index, state->engine->param_add(std::move(param)));
    if (id != nullptr) *id = index;
    return {};
  });
}

alq_status alq_unit_add(alq_engine* engine, const char* name,
                        const int64_t* params, int64_t n, uint32_t flags,
                        int64_t* id, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineState * state, resolve(engine));
    constexpr int64_t kMaxParams = int64_t{1} << 24;
    if (n < 0 || n > kMaxParams || (n > 0 && params == nullptr) ||
        (flags & ~ALQ_UNIT_ROOT) != 0) {
      return make_error(ALQ_INVALID_ARGUMENT,
                        "unit \"{}\": {} parameters{}, flags {:#x}; n is at "
                        "least 0 and the only flag is ALQ_UNIT_ROOT",
                        name == nullptr ? "" : name, n,
                        params == nullptr ? " at null" : "", flags);
    }
    engine::Unit unit;
    unit.name = name == nullptr ? "unit" : name;
    unit.root = (flags & ALQ_UNIT_ROOT) != 0;
    for (int64_t i = 0; i < n; ++i) {
      bool fits = params[i] >= 0 && params[i] <= INT32_MAX;
      unit.params.push_back(fits ? static_cast<int32_t>(params[i]) : -1);
    }
    ALQ_ASSIGN(int32_t index, state->engine->unit_add(std::move(unit)));
    if (id != nullptr) *id = index;
    return {};
  });
}

alq_status alq_unit_place(alq_engine* engine, int64_t unit, uint32_t param_axes,
                          uint32_t grad_axes, uint32_t state_axes,
                          alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineState * state, resolve(engine));
    return state->engine->unit_place(unit, {param_axes, grad_axes, state_axes});
  });
}

alq_status alq_optimizer_set(alq_engine* engine, int32_t group,
                             const alq_optimizer_desc* desc, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineState * state, resolve(engine));
    alq_optimizer_desc known = {};
    ALQ_TRY(read_struct("alq_optimizer_desc", desc, &known));
    ALQ_TRY(check_optimizer(known));
    if (group < 0 || group >= 1024) {
      return make_error(ALQ_OUT_OF_RANGE,
                        "optimizer group {}; groups are 0 to 1023", group);
    }
    return state->engine->optimizer_set(group, known);
  });
}

alq_status alq_engine_plan(alq_engine* engine, const alq_plan_desc* desc,
                           alq_plan_report* report, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineState * state, resolve(engine));
    alq_plan_desc known = {};
    if (desc != nullptr) ALQ_TRY(read_struct("alq_plan_desc", desc, &known));
    alq_plan_report checked = {};
    if (report != nullptr) {
      ALQ_TRY(read_struct("alq_plan_report", report, &checked));
    }
    ALQ_TRY(check_plan(known));
    if (state->engine->committed()) {
      state->next.reset();  // refused: no change is planned any more
      ALQ_ASSIGN(state->next, state->engine->replanned(known));
    } else {
      ALQ_TRY(state->engine->plan(known));
    }
    if (report == nullptr) return {};
    write_struct(
        report_of(*state->latest().current_plan(), state->latest().model()),
        report);
    return {};
  });
}

alq_status alq_engine_plan_text(const alq_engine* engine, int32_t format,
                                char* buf, size_t cap, size_t* need,
                                alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineState * state, resolve(engine));
    const engine::Plan* plan = state->latest().current_plan();
    if (plan == nullptr) {
      return make_error(ALQ_FAILED_PRECONDITION,
                        "no plan yet; call alq_engine_plan");
    }
    if (format != ALQ_FORMAT_TEXT && format != ALQ_FORMAT_JSON) {
      return make_error(ALQ_INVALID_ARGUMENT, "unknown format {}", format);
    }
    const engine::Model& model = state->latest().model();
    return write_text(format == ALQ_FORMAT_TEXT
                          ? engine::plan_text(*plan, model)
                          : engine::plan_json(*plan, model),
                      buf, cap, need);
  });
}

alq_status alq_engine_commit(alq_engine* engine, void* slab, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineState * state, resolve(engine));
    if (state->next == nullptr) return state->engine->commit(slab);
    std::shared_ptr<engine::Engine> next = std::move(state->next);
    ALQ_TRY(next->take_over(*state->engine, slab));
    ALQ_TRY(state->engine->close(state->ctx->context->deadline(0)));
    state->engine->retire(state->engine);
    state->engine = std::move(next);
    return {};
  });
}

alq_status alq_engine_report(const alq_engine* engine, char* buf, size_t cap,
                             size_t* need, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineState * state, resolve(engine));
    return write_text(state->engine->report(), buf, cap, need);
  });
}

alq_status alq_engine_trace_write(alq_engine* engine, const char* dir,
                                  int32_t step, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineState * state, resolve(engine));
    if (dir == nullptr || dir[0] == 0) {
      return make_error(ALQ_INVALID_ARGUMENT, "the trace needs a directory");
    }
    return state->engine->trace_write(dir, step);
  });
}

alq_status alq_engine_close(alq_engine* engine, int64_t timeout_ns,
                            alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineState * state, resolve(engine));
    if (timeout_ns < 0) {
      return make_error(ALQ_INVALID_ARGUMENT, "timeout_ns {} is negative",
                        timeout_ns);
    }
    return state->engine->close(state->ctx->context->deadline(timeout_ns));
  });
}

void alq_engine_release(alq_engine* engine) { release_handle(engine); }
