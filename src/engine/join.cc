// Join: a rank without data goes on serving its shards.
//
// It follows the calls of the ranks that have some (see call_log.h): its core
// gets the same inputs as theirs, so it takes part in the same gathers,
// reductions and steps, in the same order, whatever the placement.  What it has
// of a microbatch is of weight 0 and negative zeros.  A call is followed when
// all ranks that still have data have made it, and all the same one; so ranks
// that go different ways are told before any data moves.
//
// Cost: nothing is waited for and nothing sent while no rank follows.  A
// follower that waits costs each rank that it waits for one message of a cache
// line.
#include <vector>

#include "engine/engine.h"

namespace aliquot::engine {

namespace {

const char* pass_text(int32_t pass) {
  switch (pass) {
    case ALQ_PASS_F: return "F";
    case ALQ_PASS_F_NOGRAD: return "F_NOGRAD";
    case ALQ_PASS_R: return "R";
    default: return "B";
  }
}

const char* other_text(OtherCall call) {
  switch (call) {
    case OtherCall::kWrite: return "param_write";
    case OtherCall::kHold: return "unit_hold";
    case OtherCall::kPlan: return "engine_plan";
    case OtherCall::kTrace: return "engine_trace_write";
    case OtherCall::kClose: return "engine_close";
  }
  return "?";
}

}  // namespace

std::string Engine::call_text(const Call& call) const {
  auto id = static_cast<size_t>(call.id);
  switch (call.kind) {
    case CallKind::kMicrobatchBegin: {
      bool eval = (call.detail & ~Call::kLast) == ALQ_EVAL;
      bool last = (call.detail & Call::kLast) != 0;
      return fmt::format("microbatch_begin({}{})", eval ? "EVAL" : "TRAIN",
                         last ? ", last" : "");
    }
    case CallKind::kUnitBegin:
    case CallKind::kUnitEnd:
      return fmt::format("unit_{} of unit {} ({}), pass {}",
                         call.kind == CallKind::kUnitBegin ? "begin" : "end",
                         call.id, model_.units[id].name,
                         pass_text(call.detail & ~Call::kLent));
    case CallKind::kReduce:
      return fmt::format("the last grad_ready of unit {}",
                         model_.bundles[id].name);
    case CallKind::kMicrobatchEnd: return "microbatch_end";
    case CallKind::kStep: return "step";
    case CallKind::kStepSet: return fmt::format("step_set({})", call.begin);
    case CallKind::kTouch: return "param_touch";
    case CallKind::kRead:
      return fmt::format("param_read of \"{}\" [{}, {})",
                         model_.params[id].name, call.begin,
                         call.begin + call.count);
    case CallKind::kOther:
      return other_text(static_cast<OtherCall>(call.detail));
  }
  return "?";
}

Status Engine::join(bool leaves, alq_join_report* report) {
  const char* name = leaves ? "join_leave" : "join_enter";
  ALQ_TRY(need_committed(name));
  if (core_->in_microbatch()) {
    return explain({CoreCode::kInMicrobatch}, name, -1, 0);
  }
  if (core_->holding()) {
    return make_error(ALQ_FAILED_PRECONDITION,
                      "engine {}: {} while units are held; call "
                      "alq_unit_unhold first, on all ranks",
                      name_, name);
  }
  if (groups_.exchange->size() == 1) {
    report->left = leaves ? 1 : 0;
    report->begun = microbatch_;
    report->last = last_ ? 1 : 0;
    return {};
  }
  if (device_->asynchronous()) {
    return make_error(ALQ_UNSUPPORTED,
                      "engine {}: {} is for ranks on CPU; give every rank "
                      "equally many microbatches, some of them of weight 0",
                      name_, name);
  }
  if (log_ == nullptr) {
    return make_error(ALQ_UNSUPPORTED,
                      "engine {}: {} needs ranks that share one host's memory; "
                      "give every rank equally many microbatches, some of them "
                      "of weight 0",
                      name_, name);
  }
  following_ = true;
  Status status = follow(leaves, report);
  following_ = false;
  // The others must not wait for a rank that follows no more.
  if (!status.ok()) abort_groups(status);
  return status;
}

Status Engine::follow(bool leaves, alq_join_report* report) {
  ALQ_TRY(log_->end(leaves));
  while (true) {
    ALQ_ASSIGN(CallLog::Next next, log_->next());
    if (next.author < 0) {
      report->left = next.left >= 0 ? 1 : 0;
      report->begun = microbatch_;
      report->last = last_ ? 1 : 0;
      log_->finish_region();
      return {};
    }
    ALQ_TRY(check_next(next));
    ALQ_TRY(context_->faults.point("engine.join"));
    ALQ_TRY(serve(next.call, next.author, report));
  }
}

Status Engine::check_next(const CallLog::Next& next) const {
  auto rank_of = [&](int32_t r) {
    return groups_.exchange->ranks()[static_cast<size_t>(r)];
  };
  int32_t author = rank_of(next.author);
  if (next.left >= 0) {
    int32_t left = rank_of(next.left);
    return make_error(ALQ_RANK_MISMATCH,
                      "engine {}: rank {} called join_leave, rank {} {}; ranks "
                      "that have not entered join leave it at the same place",
                      name_, left, author, call_text(next.call))
        .with_rank(left);
  }
  if (next.other >= 0) {
    int32_t other = rank_of(next.other);
    return make_error(ALQ_RANK_MISMATCH,
                      "engine {}: while rank {} is in join, rank {} called {} "
                      "and rank {} {}; ranks with data make the same calls in "
                      "the same order",
                      name_, context_->rank, author, call_text(next.call),
                      other, call_text(next.other_call))
        .with_rank(other);
  }
  if (next.call.kind == CallKind::kOther) {
    return make_error(ALQ_FAILED_PRECONDITION,
                      "engine {}: rank {} called {} while rank {} is in join; "
                      "call alq_join_leave before, or alq_join_enter",
                      name_, author, call_text(next.call), context_->rank)
        .with_rank(author);
  }
  return {};
}

Status Engine::serve(const Call& call, int32_t author,
                     alq_join_report* report) {
  if (call.kind == CallKind::kStep) return serve_step(author, report);
  ALQ_TRY(log_->follow());
  int32_t detail = call.detail;
  CoreError error;
  switch (call.kind) {
    case CallKind::kMicrobatchBegin: {
      int32_t mode = detail & ~Call::kLast;
      ++(mode == ALQ_EVAL ? report->evals : report->microbatches);
      return microbatch_begin(mode, 0, (detail & Call::kLast) != 0, nullptr);
    }
    case CallKind::kMicrobatchEnd: return microbatch_end(nullptr);
    case CallKind::kStepSet: return set_steps(call.begin);
    case CallKind::kTouch: return param_touch();
    case CallKind::kRead: return serve_read(call);
    case CallKind::kUnitBegin:
      error = core_->unit_begin(call.id, detail & ~Call::kLent,
                                (detail & Call::kLent) != 0);
      break;
    case CallKind::kUnitEnd: error = core_->unit_end(call.id, detail); break;
    case CallKind::kReduce: error = core_->grads_missing(call.id); break;
    case CallKind::kStep:
    case CallKind::kOther: break;
  }
  if (!error.ok()) {
    return make_error(ALQ_INTERNAL,
                      "engine {}: rank {} cannot follow {} (refusal {})", name_,
                      context_->rank, call_text(call),
                      static_cast<int32_t>(error.code))
        .with_rank(context_->rank);
  }
  return act(nullptr);
}

// The arguments are read before the author is told to go on.
Status Engine::serve_step(int32_t author, alq_join_report* report) {
  const double* rates = log_->rates(author);
  std::vector<double> own(rates, rates + 1 + 2 * optimizers_.size());
  alq_step_desc desc = {};
  desc.clip_norm = own[0];
  desc.lr = own.data() + 1;
  desc.weight_decay = own.data() + 1 + optimizers_.size();
  desc.n_groups = static_cast<int32_t>(optimizers_.size());
  ALQ_TRY(log_->follow());
  ++report->steps;
  Status status = step(desc, nullptr, nullptr);
  // What all ranks refuse alike is for those to handle that called it.
  if (status.ok() || last_) return status;
  for (const auto& group : groups_.all()) ALQ_TRY(group->status());
  return {};
}

Status Engine::serve_read(const Call& call) {
  ALQ_ASSIGN(Part part, part_of(call.id, call.detail));
  return read(call.id, part, nullptr, call.begin, call.count, part.dtype);
}

}  // namespace aliquot::engine
