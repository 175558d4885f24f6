// Collectives and messages.
#include "api/guard.h"
#include "api/state.h"

using namespace aliquot;
using namespace aliquot::api;

namespace {

struct Call {
  alq_group* group;
  const alq_stream* stream;
  alq_work** work;
};

Coll coll_of(CollKind kind, const void* src, void* dst, int64_t count,
             alq_dtype dtype) {
  Coll coll;
  coll.kind = kind;
  coll.src = src;
  coll.dst = dst;
  coll.count = count;
  coll.dtype = dtype;
  return coll;
}

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

Status set_counts(const Call& call, const int64_t* counts,
                  std::span<const int64_t>* out) {
  ALQ_ASSIGN(GroupState * state, resolve(call.group));
  if (counts == nullptr) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "counts is null; it has one entry per rank ({})",
                      state->group->size());
  }
  *out = {counts, static_cast<size_t>(state->group->size())};
  return {};
}

}  // namespace

alq_status alq_group_all_reduce(alq_group* group, const void* src, void* dst,
                                int64_t count, alq_dtype dtype,
                                alq_reduce_op op, const alq_stream* stream,
                                alq_work** work, alq_error* err) {
  return guard(err, [&]() -> Status {
    Coll coll = coll_of(CollKind::kAllReduce, src, dst, count, dtype);
    coll.op = op;
    return issue({group, stream, work}, coll);
  });
}

alq_status alq_group_all_gather(alq_group* group, const void* src, void* dst,
                                int64_t count, alq_dtype dtype,
                                const alq_stream* stream, alq_work** work,
                                alq_error* err) {
  return guard(err, [&]() -> Status {
    Coll coll = coll_of(CollKind::kAllGather, src, dst, count, dtype);
    return issue({group, stream, work}, coll);
  });
}

alq_status alq_group_all_gather_v(alq_group* group, const void* src, void* dst,
                                  const int64_t* counts, alq_dtype dtype,
                                  const alq_stream* stream, alq_work** work,
                                  alq_error* err) {
  return guard(err, [&]() -> Status {
    Call call{group, stream, work};
    Coll coll = coll_of(CollKind::kAllGather, src, dst, 0, dtype);
    ALQ_TRY(set_counts(call, counts, &coll.counts));
    return issue(call, coll);
  });
}

alq_status alq_group_reduce_scatter(alq_group* group, const void* src,
                                    void* dst, int64_t count, alq_dtype dtype,
                                    alq_reduce_op op, const alq_stream* stream,
                                    alq_work** work, alq_error* err) {
  return guard(err, [&]() -> Status {
    Coll coll = coll_of(CollKind::kReduceScatter, src, dst, count, dtype);
    coll.op = op;
    return issue({group, stream, work}, coll);
  });
}

alq_status alq_group_reduce_scatter_v(alq_group* group, const void* src,
                                      void* dst, const int64_t* counts,
                                      alq_dtype dtype, alq_reduce_op op,
                                      const alq_stream* stream, alq_work** work,
                                      alq_error* err) {
  return guard(err, [&]() -> Status {
    Call call{group, stream, work};
    Coll coll = coll_of(CollKind::kReduceScatter, src, dst, 0, dtype);
    coll.op = op;
    ALQ_TRY(set_counts(call, counts, &coll.counts));
    return issue(call, coll);
  });
}

alq_status alq_group_broadcast(alq_group* group, void* buf, int64_t count,
                               alq_dtype dtype, int32_t root,
                               const alq_stream* stream, alq_work** work,
                               alq_error* err) {
  return guard(err, [&]() -> Status {
    Coll coll = coll_of(CollKind::kBroadcast, buf, buf, count, dtype);
    coll.root = root;
    return issue({group, stream, work}, coll);
  });
}

alq_status alq_group_all_to_all(alq_group* group, const void* src, void* dst,
                                int64_t count, alq_dtype dtype,
                                const alq_stream* stream, alq_work** work,
                                alq_error* err) {
  return guard(err, [&]() -> Status {
    Coll coll = coll_of(CollKind::kAllToAll, src, dst, count, dtype);
    return issue({group, stream, work}, coll);
  });
}

alq_status alq_group_all_to_all_v(alq_group* group, const void* src,
                                  const int64_t* send_counts, void* dst,
                                  const int64_t* recv_counts, alq_dtype dtype,
                                  const alq_stream* stream, alq_work** work,
                                  alq_error* err) {
  return guard(err, [&]() -> Status {
    Call call{group, stream, work};
    Coll coll = coll_of(CollKind::kAllToAllV, src, dst, 0, dtype);
    ALQ_TRY(set_counts(call, send_counts, &coll.counts));
    ALQ_TRY(set_counts(call, recv_counts, &coll.recv_counts));
    return issue(call, coll);
  });
}

alq_status alq_group_reduce(alq_group* group, const void* src, void* dst,
                            int64_t count, alq_dtype dtype, alq_reduce_op op,
                            int32_t root, const alq_stream* stream,
                            alq_work** work, alq_error* err) {
  return guard(err, [&]() -> Status {
    Coll coll = coll_of(CollKind::kReduce, src, dst, count, dtype);
    coll.op = op;
    coll.root = root;
    return issue({group, stream, work}, coll);
  });
}

alq_status alq_group_gather(alq_group* group, const void* src, void* dst,
                            int64_t count, const int64_t* counts,
                            alq_dtype dtype, int32_t root,
                            const alq_stream* stream, alq_work** work,
                            alq_error* err) {
  return guard(err, [&]() -> Status {
    Call call{group, stream, work};
    Coll coll = coll_of(CollKind::kGather, src, dst, count, dtype);
    coll.root = root;
    if (counts != nullptr) ALQ_TRY(set_counts(call, counts, &coll.counts));
    return issue(call, coll);
  });
}

alq_status alq_group_scatter(alq_group* group, const void* src, void* dst,
                             int64_t count, const int64_t* counts,
                             alq_dtype dtype, int32_t root,
                             const alq_stream* stream, alq_work** work,
                             alq_error* err) {
  return guard(err, [&]() -> Status {
    Call call{group, stream, work};
    Coll coll = coll_of(CollKind::kScatter, src, dst, count, dtype);
    coll.root = root;
    if (counts != nullptr) ALQ_TRY(set_counts(call, counts, &coll.counts));
    return issue(call, coll);
  });
}

alq_status alq_group_all_reduce_premul(alq_group* group, const void* src,
                                       void* dst, int64_t count,
                                       alq_dtype dtype, double factor,
                                       const alq_stream* stream,
                                       alq_work** work, alq_error* err) {
  return guard(err, [&]() -> Status {
    Coll coll = coll_of(CollKind::kAllReduce, src, dst, count, dtype);
    coll.factor = factor;
    return issue({group, stream, work}, coll);
  });
}

alq_status alq_group_reduce_scatter_premul(alq_group* group, const void* src,
                                           void* dst, int64_t count,
                                           const int64_t* counts,
                                           alq_dtype dtype, double factor,
                                           const alq_stream* stream,
                                           alq_work** work, alq_error* err) {
  return guard(err, [&]() -> Status {
    Call call{group, stream, work};
    Coll coll = coll_of(CollKind::kReduceScatter, src, dst, count, dtype);
    coll.factor = factor;
    if (counts != nullptr) ALQ_TRY(set_counts(call, counts, &coll.counts));
    return issue(call, coll);
  });
}

alq_status alq_group_reduce_premul(alq_group* group, const void* src, void* dst,
                                   int64_t count, alq_dtype dtype,
                                   double factor, int32_t root,
                                   const alq_stream* stream, alq_work** work,
                                   alq_error* err) {
  return guard(err, [&]() -> Status {
    Coll coll = coll_of(CollKind::kReduce, src, dst, count, dtype);
    coll.factor = factor;
    coll.root = root;
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
    Coll coll = coll_of(CollKind::kSend, src, nullptr, count, dtype);
    coll.root = peer;
    return issue({group, stream, work}, coll);
  });
}

alq_status alq_group_recv(alq_group* group, void* dst, int64_t count,
                          alq_dtype dtype, int32_t peer,
                          const alq_stream* stream, alq_work** work,
                          alq_error* err) {
  return guard(err, [&]() -> Status {
    Coll coll = coll_of(CollKind::kRecv, nullptr, dst, count, dtype);
    coll.root = peer;
    return issue({group, stream, work}, coll);
  });
}
