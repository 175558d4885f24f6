// Engine: parameters, microbatches, unit passes, gradients, steps.
#include <cmath>

#include "api/guard.h"
#include "api/state.h"

using namespace aliquot;
using namespace aliquot::api;

namespace {

// Ids beyond 32 bits do not exist; -1 is refused with the range.
int32_t id_of(int64_t id) {
  return id >= 0 && id <= INT32_MAX ? static_cast<int32_t>(id) : -1;
}

struct EngineCall {
  EngineState* state = nullptr;
  Stream* stream = nullptr;
};

Result<EngineCall> engine_call(alq_engine* engine, const alq_stream* stream) {
  EngineCall call;
  ALQ_ASSIGN(call.state, resolve(engine));
  ALQ_ASSIGN(call.stream, call.state->ctx->device->from_abi(stream));
  return call;
}

bool lies_on(const ContextState& ctx, const alq_tensor& tensor) {
  if (ctx.cuda == nullptr) return tensor.device_type == ALQ_DEVICE_CPU;
  return tensor.device_type == ALQ_DEVICE_CUDA &&
         tensor.device_id == ctx.cuda->ordinal();
}

}  // namespace

alq_status alq_param_write(alq_engine* engine, int64_t param, int32_t what,
                           const void* data, int64_t begin, int64_t count,
                           alq_dtype dtype, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineState * state, resolve(engine));
    return state->engine->param_write(id_of(param), what, data, begin, count,
                                      dtype);
  });
}

alq_status alq_param_read(alq_engine* engine, int64_t param, int32_t what,
                          void* data, int64_t begin, int64_t count,
                          alq_dtype dtype, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineState * state, resolve(engine));
    return state->engine->param_read(id_of(param), what, data, begin, count,
                                     dtype);
  });
}

alq_status alq_shard_view(alq_engine* engine, int64_t param, int32_t what,
                          alq_shard* out, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineState * state, resolve(engine));
    ALQ_TRY(check_out(out, "shard"));
    alq_shard known = {};
    ALQ_TRY(read_struct("alq_shard", out, &known));
    ALQ_TRY(state->engine->shard_view(id_of(param), what, &known));
    write_struct(known, out);
    return {};
  });
}

alq_status alq_param_touch(alq_engine* engine, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineState * state, resolve(engine));
    return state->engine->param_touch();
  });
}

alq_status alq_microbatch_begin(alq_engine* engine, int32_t mode, double weight,
                                int32_t last, double* grad_scale,
                                alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineState * state, resolve(engine));
    return state->engine->microbatch_begin(mode, weight, last != 0, grad_scale);
  });
}

alq_status alq_unit_begin(alq_engine* engine, int64_t unit, int32_t pass,
                          const alq_stream* stream, alq_unit_view* view,
                          alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineCall call, engine_call(engine, stream));
    alq_unit_view known = {};
    ALQ_TRY(read_struct("alq_unit_view", view, &known));
    if ((known.flags & ~ALQ_VIEW_PUSH) != 0) {
      return make_error(ALQ_INVALID_ARGUMENT,
                        "alq_unit_view: unknown flags {:#x}", known.flags);
    }
    ALQ_TRY(
        call.state->engine->unit_begin(id_of(unit), pass, call.stream, &known));
    write_struct(known, view);
    return {};
  });
}

alq_status alq_unit_end(alq_engine* engine, int64_t unit, int32_t pass,
                        const alq_stream* stream, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineCall call, engine_call(engine, stream));
    return call.state->engine->unit_end(id_of(unit), pass, call.stream);
  });
}

alq_status alq_grad_ready(alq_engine* engine, int64_t param,
                          const alq_stream* stream, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineCall call, engine_call(engine, stream));
    return call.state->engine->grad_ready(id_of(param), call.stream);
  });
}

alq_status alq_grad_push(alq_engine* engine, int64_t param,
                         const alq_tensor* grad, const alq_stream* stream,
                         alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineCall call, engine_call(engine, stream));
    if (grad == nullptr || grad->ndim < 0 || grad->ndim > 64 ||
        (grad->ndim > 0 && grad->shape == nullptr) ||
        !lies_on(*call.state->ctx, *grad)) {
      return make_error(ALQ_INVALID_ARGUMENT,
                        "alq_grad_push: the tensor is null, has no shape or "
                        "does not lie on this engine's device");
    }
    return call.state->engine->grad_push(id_of(param), *grad, call.stream);
  });
}

alq_status alq_microbatch_end(alq_engine* engine, const alq_stream* stream,
                              alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineCall call, engine_call(engine, stream));
    return call.state->engine->microbatch_end(call.stream);
  });
}

alq_status alq_step(alq_engine* engine, const alq_step_desc* desc,
                    const alq_stream* stream, alq_step_report* report,
                    alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineCall call, engine_call(engine, stream));
    alq_step_desc known = {};
    ALQ_TRY(read_struct("alq_step_desc", desc, &known));
    if (known.flags != 0 || known.n_groups < 0 ||
        !std::isfinite(known.clip_norm) || known.clip_norm < 0) {
      return make_error(ALQ_INVALID_ARGUMENT,
                        "alq_step_desc: flags {:#x}, n_groups {} or clip_norm "
                        "{} is out of range",
                        known.flags, known.n_groups, known.clip_norm);
    }
    alq_step_report full = {};
    if (report != nullptr) {
      ALQ_TRY(read_struct("alq_step_report", report, &full));
    }
    ALQ_TRY(call.state->engine->step(known, call.stream,
                                     report != nullptr ? &full : nullptr));
    if (report != nullptr) write_struct(full, report);
    return {};
  });
}

alq_status alq_step_set(alq_engine* engine, int64_t steps, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineState * state, resolve(engine));
    return state->engine->set_steps(steps);
  });
}

alq_status alq_unit_hold(alq_engine* engine, int64_t unit, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineState * state, resolve(engine));
    return state->engine->unit_hold(unit);
  });
}

alq_status alq_unit_unhold(alq_engine* engine, int64_t unit, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EngineState * state, resolve(engine));
    return state->engine->unit_unhold(unit);
  });
}

alq_status alq_engine_abandon(alq_engine* engine, int64_t timeout_ns,
                              alq_error* err) {
  return guard(err, [&]() -> Status {
    if (timeout_ns < 0) {
      return make_error(ALQ_INVALID_ARGUMENT, "timeout_ns {} is negative",
                        timeout_ns);
    }
    ALQ_ASSIGN(EngineState * state, resolve(engine));
    return state->engine->abandon(state->ctx->context->deadline(timeout_ns));
  });
}

namespace {

Status join(alq_engine* engine, bool leaves, alq_join_report* report) {
  ALQ_ASSIGN(EngineState * state, resolve(engine));
  alq_join_report full = {};
  if (report != nullptr) {
    ALQ_TRY(read_struct("alq_join_report", report, &full));
  }
  full = {};
  ALQ_TRY(state->engine->join(leaves, &full));
  if (report == nullptr) return {};
  full.struct_size = report->struct_size;
  write_struct(full, report);
  return {};
}

}  // namespace

alq_status alq_join_enter(alq_engine* engine, alq_join_report* report,
                          alq_error* err) {
  return guard(err, [&]() { return join(engine, false, report); });
}

alq_status alq_join_leave(alq_engine* engine, alq_join_report* report,
                          alq_error* err) {
  return guard(err, [&]() { return join(engine, true, report); });
}
