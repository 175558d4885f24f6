// Groups and collectives.
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

struct Call {
  alq_group* group;
  const alq_stream* stream;
  alq_work** work;
};

// Issues `coll` and wraps the work, if one is asked for.
Status issue(const Call& call, const Coll& coll) {
  if (call.work != nullptr) *call.work = nullptr;
  ALQ_ASSIGN(GroupState * state, resolve(call.group));
  if (state->ctx->closed) {
    return make_error(ALQ_FAILED_PRECONDITION, "the context is closed");
  }
  ALQ_ASSIGN(Stream * stream, state->ctx->device->from_abi(call.stream));
  if (call.work == nullptr) return state->group->issue(coll, stream, nullptr);
  auto work = std::make_shared<WorkState>();
  work->ctx = state->ctx;
  ALQ_TRY(state->group->issue(coll, stream, &work->work));
  *call.work = pool<alq_work>().make(std::move(work));
  return {};
}

Status set_counts(const Call& call, const int64_t* counts, Coll* coll) {
  ALQ_ASSIGN(GroupState * state, resolve(call.group));
  if (counts == nullptr) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "counts is null; it has one entry per rank ({})",
                      state->group->size());
  }
  coll->counts = {counts, static_cast<size_t>(state->group->size())};
  return {};
}

}  // namespace

alq_status alq_group_world(alq_context* ctx, alq_group** out, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_TRY(check_out(out, "group"));
    *out = nullptr;
    ALQ_ASSIGN(ContextState * state, resolve(ctx));
    ALQ_TRY(need_world(*state));
    *out = make_group(pool<alq_context>().share(ctx), state->world);
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
    ALQ_ASSIGN(std::shared_ptr<Group> group,
               state->group->split(color, key, name == nullptr ? "" : name,
                                   deadline));
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
    state->group->abort(make_error(ALQ_ABORTED, "rank {} aborted group \"{}\": {}",
                                   rank, state->group->name(),
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
    if (state->group == state->ctx->world) {
      return make_error(ALQ_INVALID_ARGUMENT,
                        "the world is closed with its context: alq_close");
    }
    return state->group->close(Deadline::after(
        timeout_ns > 0 ? timeout_ns : state->group->timeout_ns()));
  });
}

void alq_group_release(alq_group* group) { release_handle(group); }

alq_status alq_group_all_reduce(alq_group* group, const void* src, void* dst,
                                int64_t count, alq_dtype dtype,
                                alq_reduce_op op, const alq_stream* stream,
                                alq_work** work, alq_error* err) {
  return guard(err, [&]() -> Status {
    Coll coll;
    coll.kind = CollKind::kAllReduce;
    coll.src = src;
    coll.dst = dst;
    coll.count = count;
    coll.dtype = dtype;
    coll.op = op;
    return issue({group, stream, work}, coll);
  });
}

alq_status alq_group_all_gather(alq_group* group, const void* src, void* dst,
                                int64_t count, alq_dtype dtype,
                                const alq_stream* stream, alq_work** work,
                                alq_error* err) {
  return guard(err, [&]() -> Status {
    Coll coll;
    coll.kind = CollKind::kAllGather;
    coll.src = src;
    coll.dst = dst;
    coll.count = count;
    coll.dtype = dtype;
    return issue({group, stream, work}, coll);
  });
}

alq_status alq_group_all_gather_v(alq_group* group, const void* src, void* dst,
                                  const int64_t* counts, alq_dtype dtype,
                                  const alq_stream* stream, alq_work** work,
                                  alq_error* err) {
  return guard(err, [&]() -> Status {
    Call call{group, stream, work};
    Coll coll;
    coll.kind = CollKind::kAllGather;
    coll.src = src;
    coll.dst = dst;
    coll.dtype = dtype;
    ALQ_TRY(set_counts(call, counts, &coll));
    return issue(call, coll);
  });
}

alq_status alq_group_reduce_scatter(alq_group* group, const void* src,
                                    void* dst, int64_t count, alq_dtype dtype,
                                    alq_reduce_op op, const alq_stream* stream,
                                    alq_work** work, alq_error* err) {
  return guard(err, [&]() -> Status {
    Coll coll;
    coll.kind = CollKind::kReduceScatter;
    coll.src = src;
    coll.dst = dst;
    coll.count = count;
    coll.dtype = dtype;
    coll.op = op;
    return issue({group, stream, work}, coll);
  });
}

alq_status alq_group_reduce_scatter_v(alq_group* group, const void* src,
                                      void* dst, const int64_t* counts,
                                      alq_dtype dtype, alq_reduce_op op,
                                      const alq_stream* stream,
                                      alq_work** work, alq_error* err) {
  return guard(err, [&]() -> Status {
    Call call{group, stream, work};
    Coll coll;
    coll.kind = CollKind::kReduceScatter;
    coll.src = src;
    coll.dst = dst;
    coll.dtype = dtype;
    coll.op = op;
    ALQ_TRY(set_counts(call, counts, &coll));
    return issue(call, coll);
  });
}

alq_status alq_group_broadcast(alq_group* group, void* buf, int64_t count,
                               alq_dtype dtype, int32_t root,
                               const alq_stream* stream, alq_work** work,
                               alq_error* err) {
  return guard(err, [&]() -> Status {
    Coll coll;
    coll.kind = CollKind::kBroadcast;
    coll.src = buf;
    coll.dst = buf;
    coll.count = count;
    coll.dtype = dtype;
    coll.root = root;
    return issue({group, stream, work}, coll);
  });
}

alq_status alq_group_all_to_all(alq_group* group, const void* src, void* dst,
                                int64_t count, alq_dtype dtype,
                                const alq_stream* stream, alq_work** work,
                                alq_error* err) {
  return guard(err, [&]() -> Status {
    Coll coll;
    coll.kind = CollKind::kAllToAll;
    coll.src = src;
    coll.dst = dst;
    coll.count = count;
    coll.dtype = dtype;
    return issue({group, stream, work}, coll);
  });
}

alq_status alq_group_barrier(alq_group* group, const alq_stream* stream,
                             alq_work** work, alq_error* err) {
  return guard(err, [&]() -> Status {
    return issue({group, stream, work}, Coll{});
  });
}

alq_status alq_group_send(alq_group* group, const void* src, int64_t count,
                          alq_dtype dtype, int32_t peer,
                          const alq_stream* stream, alq_work** work,
                          alq_error* err) {
  return guard(err, [&]() -> Status {
    Coll coll;
    coll.kind = CollKind::kSend;
    coll.src = src;
    coll.count = count;
    coll.dtype = dtype;
    coll.root = peer;
    return issue({group, stream, work}, coll);
  });
}

alq_status alq_group_recv(alq_group* group, void* dst, int64_t count,
                          alq_dtype dtype, int32_t peer,
                          const alq_stream* stream, alq_work** work,
                          alq_error* err) {
  return guard(err, [&]() -> Status {
    Coll coll;
    coll.kind = CollKind::kRecv;
    coll.dst = dst;
    coll.count = count;
    coll.dtype = dtype;
    coll.root = peer;
    return issue({group, stream, work}, coll);
  });
}
