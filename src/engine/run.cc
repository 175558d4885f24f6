// Running a step: microbatches, unit passes, gradients.
#include <cmath>

#include "engine/engine.h"

namespace aliquot::engine {

namespace {

const char* pass_name(int32_t pass) {
  switch (pass) {
    case ALQ_PASS_F: return "F";
    case ALQ_PASS_F_NOGRAD: return "F_NOGRAD";
    case ALQ_PASS_R: return "R";
    case ALQ_PASS_B: return "B";
    default: return "?";
  }
}

Dtype dtype_of(const alq_tensor& t) {
  constexpr uint8_t kFloat = 2, kBfloat = 4;  // DLPack's type codes
  if (t.lanes != 1) return 0;
  if (t.code == kBfloat && t.bits == 16) return ALQ_BF16;
  if (t.code != kFloat) return 0;
  return t.bits == 64   ? ALQ_F64
         : t.bits == 32 ? ALQ_F32
         : t.bits == 16 ? ALQ_F16
                        : 0;
}

bool compact(const alq_tensor& t) {
  if (t.strides == nullptr) return true;
  int64_t expect = 1;
  for (int32_t d = t.ndim; d-- > 0;) {
    if (t.shape[d] != 1 && t.strides[d] != expect) return false;
    expect *= t.shape[d];
  }
  return true;
}

}  // namespace

Status Engine::explain(const CoreError& error, const char* call, int32_t unit,
                       int32_t pass) const {
  std::string what = fmt::format("engine {}: {}", name_, call);
  if (unit >= 0) {
    what += fmt::format(" of unit {} ({})", unit,
                        model_.units[static_cast<size_t>(unit)].name);
  }
  if (pass > 0) what += fmt::format(", pass {}", pass_name(pass));
  std::string other = error.other < 0
                          ? ""
                          : model_.units[static_cast<size_t>(error.other)].name;
  switch (error.code) {
    case CoreCode::kOk: return {};
    case CoreCode::kNotInMicrobatch:
      return make_error(ALQ_FAILED_PRECONDITION,
                        "{}: no {}microbatch is running; call "
                        "alq_microbatch_begin first",
                        what, pass > 0 ? "" : "TRAIN ");
    case CoreCode::kInMicrobatch:
      return make_error(ALQ_FAILED_PRECONDITION,
                        "{}: a microbatch is running; call alq_microbatch_end "
                        "first",
                        what);
    case CoreCode::kBadPass:
      return make_error(ALQ_INVALID_ARGUMENT,
                        "{}: an EVAL microbatch has F_NOGRAD passes only",
                        what);
    case CoreCode::kNotOpen:
      return make_error(ALQ_FAILED_PRECONDITION,
                        "{}: that pass is not open; it was ended before or "
                        "never begun",
                        what);
    case CoreCode::kSlotBusy:
      return make_error(ALQ_RESOURCE_EXHAUSTED,
                        "{}: its slot holds unit \"{}\", which is still open; "
                        "end that unit first or plan with a larger max_open "
                        "(now {})",
                        what, other, plan_.max_open);
    case CoreCode::kGradSlotBusy:
      return make_error(
          ALQ_RESOURCE_EXHAUSTED,
          "{}: its gradient slot still collects unit \"{}\"; make "
          "that unit's gradients ready first or plan with a "
          "larger max_open (now {})",
          what, other, plan_.max_open);
    case CoreCode::kAlreadyReady:
      return make_error(ALQ_FAILED_PRECONDITION,
                        "{}: that gradient was final in this microbatch before",
                        what);
    case CoreCode::kNotTrainable:
      return make_error(ALQ_INVALID_ARGUMENT, "{}: the parameter is frozen",
                        what);
    case CoreCode::kNoGradWindow:
      return make_error(ALQ_FAILED_PRECONDITION,
                        "{}: no gradient view was lent; begin pass B of its "
                        "unit first, or push the gradient",
                        what);
    case CoreCode::kStillHeld:
      return make_error(
          ALQ_FAILED_PRECONDITION,
          "{}: units are held; call alq_unit_unhold before a step", what);
    case CoreCode::kNotHeld:
      return make_error(ALQ_FAILED_PRECONDITION, "{}: the unit is not held",
                        what);
  }
  return make_error(ALQ_INTERNAL, "{}: unknown refusal", what);
}

// Executes what the core decided.
Status Engine::act(Stream* stream) {
  if (core_->actions().empty()) return {};
  ALQ_TRY(executor_->run(&core_->actions(), stream,
                         {microbatch_ - 1, last_, following_}, deadline()));
  return device_->asynchronous() ? Status{} : executor_->used_on(stream);
}

Status Engine::microbatch_begin(int32_t mode, double weight, bool last,
                                double* grad_scale) {
  ALQ_TRY(need_committed("microbatch_begin"));
  if (mode != ALQ_TRAIN && mode != ALQ_EVAL) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "engine {}: mode {} is neither TRAIN nor EVAL", name_,
                      mode);
  }
  if (core_->in_microbatch()) {
    return explain({CoreCode::kInMicrobatch}, "microbatch_begin", -1, 0);
  }
  bool train = mode == ALQ_TRAIN;
  if (train && (!std::isfinite(weight * config_.loss_scale) || weight < 0)) {
    return make_error(
        ALQ_INVALID_ARGUMENT,
        "engine {}: weight {} must not be negative and, times the "
        "loss scale {}, finite",
        name_, weight, config_.loss_scale);
  }
  if (train && (last_ || microbatch_ >= plan_.microbatches)) {
    return make_error(ALQ_FAILED_PRECONDITION,
                      "engine {}: {}; call alq_step before the next microbatch",
                      name_,
                      last_ ? "the last microbatch was begun already"
                            : fmt::format("the plan has {} microbatches per "
                                          "step",
                                          plan_.microbatches));
  }
  if (train && !last && microbatch_ + 1 == plan_.microbatches) {
    return make_error(
        ALQ_FAILED_PRECONDITION,
        "engine {}: the plan has {} microbatches per step, so this "
        "one is the last: pass last = 1, or plan for more",
        name_, plan_.microbatches);
  }
  // What was written becomes visible to all.
  if (dirty_) {
    ALQ_TRY(record({CallKind::kTouch}));
    ALQ_TRY(touch());
  }
  int32_t detail = mode | (train && last ? Call::kLast : 0);
  if (train || reads_peers_) {
    ALQ_TRY(record({CallKind::kMicrobatchBegin, static_cast<int16_t>(detail)}));
  }
  CoreError error = core_->microbatch_begin(mode);
  if (!error.ok()) return explain(error, "microbatch_begin", -1, 0);
  training_ = train;
  gathered_since_sync_ |= reads_peers_;
  if (train) {
    if (microbatch_ == 0) {
      grads_exposed_ = false;
      executor_->reset_counters();
      executor_->set_step(static_cast<int32_t>(steps_));
    }
    ++microbatch_;
    last_ = last;
    weight_sum_ += weight;
  }
  if (grad_scale != nullptr) *grad_scale = weight * config_.loss_scale;
  // Gathers come after what the caller's stream has: wait until that is known.
  if (device_->asynchronous()) return {};
  return act(nullptr);
}

void Engine::fill_view(int32_t unit, int32_t pass, alq_unit_view* view) {
  UnitViewArrays& arrays = views_[static_cast<size_t>(unit)];
  const std::vector<int32_t>& params =
      model_.units[static_cast<size_t>(unit)].params;
  bool lends = pass == ALQ_PASS_B && (view->flags & ALQ_VIEW_PUSH) == 0;
  view->n = static_cast<int64_t>(params.size());
  view->params = view->into != nullptr ? view->into : arrays.params.data();
  view->grads = lends ? arrays.grads.data() : arrays.no_grads.data();
  view->betas = arrays.betas.data();
  if (!lends) return;
  for (size_t i = 0; i < params.size(); ++i) {
    const Param& param = model_.params[static_cast<size_t>(params[i])];
    if (!param.trainable) continue;
    const SegmentPlan& p = executor_->segment_of(param);
    arrays.betas[i] = core_->grad_lent_before(params[i]) ||
                      (p.sums_in_view() && microbatch_ > 1);
  }
}

Status Engine::check_into(int32_t unit, void* const* into) const {
  const Unit& u = model_.units[static_cast<size_t>(unit)];
  bool wants = plan_.desc.memory == ALQ_MEMORY_INTO;
  if (wants != (into != nullptr) && !u.params.empty()) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "engine {}: the plan's memory is {}, so view.into must "
                      "{}be null",
                      name_, wants ? "INTO" : "not INTO", wants ? "not " : "");
  }
  for (size_t i = 0; wants && i < u.params.size(); ++i) {
    const Param& param = model_.params[static_cast<size_t>(u.params[i])];
    if (into[i] != nullptr || param.count == 0) continue;
    return make_error(ALQ_INVALID_ARGUMENT,
                      "unit {}: destination {} (\"{}\") is null", u.name, i,
                      param.name);
  }
  return {};
}

Status Engine::copy_into(int32_t unit, Stream* stream, void* const* into) {
  const std::vector<int32_t>& params =
      model_.units[static_cast<size_t>(unit)].params;
  for (size_t i = 0; i < params.size(); ++i) {
    const Param& param = model_.params[static_cast<size_t>(params[i])];
    if (param.count == 0) continue;
    kernels::CopyArgs copy{into[i], executor_->param(params[i]),
                           param.count * dtype_size(param.dtype)};
    ALQ_TRY(
        device_->launch(stream, kernels::OpCode::kCopy, &copy, sizeof copy));
  }
  return executor_->used_on(stream);
}

// A graph gathers what it uses each time it is launched, whatever was there
// when it was captured; and what it noted has not happened when it ends.
Status Engine::follow_capture(Stream* stream) {
  if (!device_->asynchronous() || stream == nullptr) return {};
  ALQ_ASSIGN(uint64_t capture, device_->capture(*stream));
  if (capture != capture_) core_->touch();
  capture_ = capture;
  return {};
}

Status Engine::unit_begin(int32_t unit, int32_t pass, Stream* stream,
                          alq_unit_view* view) {
  ALQ_TRY(need_committed("unit_begin"));
  ALQ_TRY(check_unit(unit));
  if (pass < ALQ_PASS_F || pass > ALQ_PASS_B) {
    return make_error(ALQ_INVALID_ARGUMENT, "engine {}: unknown pass {}", name_,
                      pass);
  }
  ALQ_TRY(check_into(unit, view->into));
  ALQ_TRY(context_->faults.point("engine.begin"));
  ALQ_TRY(follow_capture(stream));
  bool lend = (view->flags & ALQ_VIEW_PUSH) == 0;
  CoreError error = core_->unit_begin(unit, pass, lend);
  if (!error.ok()) return explain(error, "unit_begin", unit, pass);
  int32_t detail = pass | (lend ? Call::kLent : 0);
  if (reads_peers_) {
    ALQ_TRY(record({CallKind::kUnitBegin, static_cast<int16_t>(detail), unit}));
  }
  ALQ_TRY(act(stream));
  if (plan_.desc.memory == ALQ_MEMORY_INTO) {
    ALQ_TRY(copy_into(unit, stream, view->into));
  }
  fill_view(unit, pass, view);
  return open_compute(unit, pass, stream);
}

Status Engine::unit_end(int32_t unit, int32_t pass, Stream* stream) {
  ALQ_TRY(need_committed("unit_end"));
  ALQ_TRY(check_unit(unit));
  if (pass < ALQ_PASS_F || pass > ALQ_PASS_B) {
    return make_error(ALQ_INVALID_ARGUMENT, "engine {}: unknown pass {}", name_,
                      pass);
  }
  CoreError error = core_->unit_end(unit, pass);
  if (!error.ok()) return explain(error, "unit_end", unit, pass);
  ALQ_TRY(close_compute(unit, pass, stream));
  if (reads_peers_) {
    ALQ_TRY(record({CallKind::kUnitEnd, static_cast<int16_t>(pass), unit}));
  }
  ALQ_TRY(act(stream));
  // The caller's own work on the views, which nobody else knows of.
  return device_->asynchronous() ? executor_->used_on(stream) : Status{};
}

Status Engine::grad_ready(int32_t param, Stream* stream) {
  ALQ_TRY(need_committed("grad_ready"));
  ALQ_TRY(check_param(param));
  CoreError error = core_->grad_ready(param);
  if (!error.ok()) {
    return explain(error, "grad_ready",
                   model_.params[static_cast<size_t>(param)].units[0], 0);
  }
  int32_t reduced = core_->reduces();
  if (reduced >= 0) ALQ_TRY(record({CallKind::kReduce, 0, reduced}));
  return act(stream);
}

Status Engine::grad_push(int32_t param, const alq_tensor& grad,
                         Stream* stream) {
  ALQ_TRY(need_committed("grad_push"));
  ALQ_TRY(check_param(param));
  const Param& target = model_.params[static_cast<size_t>(param)];
  Dtype dtype = dtype_of(grad);
  if (dtype == 0) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "gradient of \"{}\": type code {} with {} bits and {} "
                      "lanes; push f64, f32, f16 or bf16",
                      target.name, grad.code, grad.bits, grad.lanes);
  }
  int64_t count = 1;
  for (int32_t d = 0; d < grad.ndim; ++d) {
    bool fits = grad.shape[d] >= 0 &&
                (grad.shape[d] == 0 || count <= target.count / grad.shape[d]);
    count = fits ? count * grad.shape[d] : -1;
    if (!fits) break;
  }
  if (count != target.count || !compact(grad) ||
      (count > 0 && grad.data == nullptr)) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "gradient of \"{}\": {} elements{}{}; the parameter has "
                      "{} and the tensor must be contiguous",
                      target.name, count,
                      compact(grad) ? "" : ", not contiguous",
                      grad.data == nullptr ? ", no data" : "", target.count);
  }
  CoreError error = core_->grad_open(param);
  if (!error.ok()) return explain(error, "grad_push", target.units[0], 0);
  ALQ_TRY(act(stream));
  const SegmentPlan& p = executor_->segment_of(target);
  const std::byte* src =
      static_cast<const std::byte*>(grad.data) + grad.byte_offset;
  if (p.sums_in_view() && microbatch_ > 1) {
    kernels::AccumulateArgs args{executor_->grad(param), src, count,
                                 p.grad_dtype, dtype};
    ALQ_TRY(device_->launch(stream, kernels::OpCode::kAccumulate, &args,
                            sizeof args));
  } else {
    kernels::CastArgs args{executor_->grad(param), src,   count,
                           p.grad_dtype,           dtype, 1.0};
    ALQ_TRY(
        device_->launch(stream, kernels::OpCode::kCast, &args, sizeof args));
  }
  ALQ_TRY(executor_->used_on(stream));
  return grad_ready(param, stream);
}

Status Engine::microbatch_end(Stream* stream) {
  ALQ_TRY(need_committed("microbatch_end"));
  for (size_t u = 0; u < computing_.size(); ++u) {
    for (int32_t pass = ALQ_PASS_F; pass <= ALQ_PASS_B; ++pass) {
      ALQ_TRY(close_compute(static_cast<int32_t>(u), pass, stream));
    }
  }
  if (core_->in_microbatch() && (training_ || reads_peers_)) {
    ALQ_TRY(record({CallKind::kMicrobatchEnd}));
  }
  CoreError error = core_->microbatch_end();
  if (!error.ok()) return explain(error, "microbatch_end", -1, 0);
  ALQ_TRY(act(stream));
  return device_->asynchronous() ? executor_->used_on(stream) : Status{};
}

Status Engine::unit_hold(int64_t unit) {
  ALQ_TRY(need_committed("unit_hold"));
  bool all = unit == ALQ_UNIT_ALL;
  if (!all) ALQ_TRY(check_unit(unit));
  int32_t units = static_cast<int32_t>(model_.units.size());
  ALQ_TRY(record(OtherCall::kHold));
  if (dirty_) ALQ_TRY(touch());
  gathered_since_sync_ = true;
  for (int32_t u = all ? 0 : static_cast<int32_t>(unit); u < units; ++u) {
    CoreError error = core_->hold(u);
    if (!error.ok()) {
      Status status = explain(error, "unit_hold", u, 0);
      ALQ_TRY(act(nullptr));
      for (int32_t v = 0; all && v < u; ++v) core_->unhold(v);
      if (!all || (plan_.desc.phases & ALQ_PHASE_HOLD_ALL) != 0) return status;
      return make_error(ALQ_RESOURCE_EXHAUSTED,
                        "{} To hold all units, plan with the phase "
                        "ALQ_PHASE_HOLD_ALL.",
                        status.message());
    }
    ALQ_TRY(act(nullptr));
    if (!all) break;
  }
  return {};
}

Status Engine::unit_unhold(int64_t unit) {
  ALQ_TRY(need_committed("unit_unhold"));
  bool all = unit == ALQ_UNIT_ALL;
  if (!all) ALQ_TRY(check_unit(unit));
  int32_t units = static_cast<int32_t>(model_.units.size());
  if (!all) {
    int32_t one = static_cast<int32_t>(unit);
    return explain(core_->unhold(one), "unit_unhold", one, 0);
  }
  for (int32_t u = 0; u < units; ++u) {
    while (core_->unhold(u).ok()) {
    }
  }
  return {};
}

}  // namespace aliquot::engine
