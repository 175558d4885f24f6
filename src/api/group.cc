// Groups.  What they do is in collectives.cc.
#include <algorithm>

#include "api/guard.h"
#include "api/state.h"

using namespace aliquot;
using namespace aliquot::api;

namespace {

Status need_world(const ContextState& state) {
  if (state.world == nullptr) {
    return make_error(ALQ_FAILED_PRECONDITION,
                      "the context is not connected; call alq_connect first");
  }
  if (state.closed) {
    return make_error(ALQ_FAILED_PRECONDITION, "the context is closed");
  }
  return {};
}

alq_group* make_group(std::shared_ptr<ContextState> ctx,
                      std::shared_ptr<Group> group) {
  auto state = std::make_shared<GroupState>();
  state->ctx = std::move(ctx);
  state->group = std::move(group);
  return pool<alq_group>().make(std::move(state));
}

}  // namespace

alq_status alq_group_world(alq_context* ctx, alq_group** out, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_TRY(check_out(out, "group"));
    *out = nullptr;
    ALQ_ASSIGN(ContextState * state, resolve(ctx));
    ALQ_TRY(need_world(*state));
    *out = make_group(pool<alq_context>().share(ctx), state->living_world());
    return {};
  });
}

alq_status alq_group_split(alq_group* parent, int32_t color, int32_t key,
                           const char* name, alq_group** out, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_TRY(check_out(out, "group"));
    *out = nullptr;
    ALQ_ASSIGN(GroupState * state, resolve(parent));
    ALQ_TRY(need_world(*state->ctx));
    Deadline deadline = Deadline::after(state->group->timeout_ns());
    ALQ_ASSIGN(
        std::shared_ptr<Group> group,
        state->group->split(color, key, name == nullptr ? "" : name, deadline));
    if (group != nullptr) *out = make_group(state->ctx, std::move(group));
    return {};
  });
}

int32_t alq_group_rank(const alq_group* group) {
  GroupState* state = pool<alq_group>().get(group);
  return state == nullptr ? -1 : state->group->rank();
}

int32_t alq_group_size(const alq_group* group) {
  GroupState* state = pool<alq_group>().get(group);
  return state == nullptr ? -1 : state->group->size();
}

alq_status alq_group_ranks(const alq_group* group, int32_t* out, int32_t cap,
                           alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(GroupState * state, resolve(group));
    std::span<const int32_t> ranks = state->group->ranks();
    if (out == nullptr || cap < static_cast<int32_t>(ranks.size())) {
      return make_error(ALQ_INVALID_ARGUMENT,
                        "the group has {} ranks, the array room for {}",
                        ranks.size(), out == nullptr ? 0 : cap);
    }
    std::copy(ranks.begin(), ranks.end(), out);
    return {};
  });
}

alq_status alq_group_set_timeout(alq_group* group, int64_t timeout_ns,
                                 alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(GroupState * state, resolve(group));
    if (timeout_ns < 0) {
      return make_error(ALQ_INVALID_ARGUMENT, "timeout_ns {} is negative",
                        timeout_ns);
    }
    state->group->set_timeout_ns(
        timeout_ns == 0 ? state->ctx->context->timeout_ns : timeout_ns);
    return {};
  });
}

alq_status alq_group_status(const alq_group* group, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(GroupState * state, resolve(group));
    return state->group->status();
  });
}

alq_status alq_group_get_stats(const alq_group* group, alq_group_stats* out,
                               alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_TRY(check_out(out, "stats"));
    ALQ_ASSIGN(GroupState * state, resolve(group));
    alq_group_stats known = {};
    ALQ_TRY(read_struct("alq_group_stats", out, &known));
    GroupStats stats = state->group->stats();
    known.ops = stats.ops;
    known.bytes_read = stats.bytes_read;
    known.bytes_written = stats.bytes_written;
    known.peer_bytes_read = stats.peer_bytes_read;
    known.syscalls = stats.syscalls;
    known.sleeps = stats.sleeps;
    write_struct(known, out);
    return {};
  });
}

alq_status alq_group_abort(alq_group* group, const char* reason,
                           alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(GroupState * state, resolve(group));
    int32_t rank = state->ctx->context->rank;
    state->group->abort(
        make_error(ALQ_ABORTED, "rank {} aborted group \"{}\": {}", rank,
                   state->group->name(),
                   reason == nullptr ? "no reason given" : reason)
            .with_rank(rank));
    return {};
  });
}

alq_status alq_group_close(alq_group* group, int64_t timeout_ns,
                           alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(GroupState * state, resolve(group));
    if (timeout_ns < 0) {
      return make_error(ALQ_INVALID_ARGUMENT, "timeout_ns {} is negative",
                        timeout_ns);
    }
    if (state->group == state->ctx->living_world()) {
      return make_error(ALQ_INVALID_ARGUMENT,
                        "the world is closed with its context: alq_close");
    }
    return state->group->close(Deadline::after(
        timeout_ns > 0 ? timeout_ns : state->group->timeout_ns()));
  });
}

alq_status alq_group_shrink(alq_group* group, int64_t timeout_ns,
                            alq_group** out, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_TRY(check_out(out, "group"));
    *out = nullptr;
    ALQ_ASSIGN(GroupState * state, resolve(group));
    if (timeout_ns < 0) {
      return make_error(ALQ_INVALID_ARGUMENT, "timeout_ns {} is negative",
                        timeout_ns);
    }
    ALQ_TRY(need_world(*state->ctx));
    ALQ_ASSIGN(std::shared_ptr<Group> survivors,
               state->group->shrink(Deadline::after(
                   timeout_ns > 0 ? timeout_ns : state->group->timeout_ns())));
    if (state->group == state->ctx->living_world()) {
      std::lock_guard lock(state->ctx->mutex);
      state->ctx->shrunk_world = survivors;
    }
    *out = make_group(state->ctx, std::move(survivors));
    return {};
  });
}

void alq_group_release(alq_group* group) { release_handle(group); }
