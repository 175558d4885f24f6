// Streams, events, works and buffers.
#include "api/guard.h"
#include "api/state.h"

using namespace aliquot;
using namespace aliquot::api;

namespace {

Status check_timeout(int64_t timeout_ns) {
  if (timeout_ns >= 0) return {};
  return make_error(ALQ_INVALID_ARGUMENT, "timeout_ns {} is negative",
                    timeout_ns);
}

}  // namespace

alq_status alq_stream_create(alq_context* ctx, alq_stream* out,
                             alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_TRY(check_out(out, "stream"));
    ALQ_ASSIGN(ContextState * state, resolve(ctx));
    ALQ_ASSIGN(std::shared_ptr<Stream> stream,
               state->device->create_stream("caller"));
    void* handle = state->handle_of(*stream);
    std::lock_guard lock(state->mutex);
    state->streams[handle] = stream;
    *out = {ALQ_DEVICE_CPU, 0, handle};
    if (state->cuda != nullptr) {
      *out = {ALQ_DEVICE_CUDA, state->cuda->ordinal(), handle};
    }
    return {};
  });
}

alq_status alq_stream_sync(alq_context* ctx, const alq_stream* stream,
                           int64_t timeout_ns, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(ContextState * state, resolve(ctx));
    ALQ_TRY(check_timeout(timeout_ns));
    ALQ_ASSIGN(Stream * s, state->device->from_abi(stream));
    if (s == nullptr) return {};
    return state->device->synchronize(*s, state->context->deadline(timeout_ns));
  });
}

void alq_stream_release(alq_context* ctx, alq_stream* stream) {
  ContextState* state = pool<alq_context>().get(ctx);
  if (state == nullptr || stream == nullptr || forked(*state)) return;
  std::shared_ptr<Stream> keep;  // ends after the lock
  std::lock_guard lock(state->mutex);
  auto it = state->streams.find(stream->handle);
  if (it == state->streams.end()) return;
  keep = it->second;
  state->streams.erase(it);
  stream->handle = nullptr;
}

alq_status alq_event_create(alq_context* ctx, alq_event** out, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_TRY(check_out(out, "event"));
    *out = nullptr;
    ALQ_ASSIGN(ContextState * state, resolve(ctx));
    auto event = std::make_shared<EventState>();
    ALQ_ASSIGN(event->event, state->device->create_event());
    event->ctx = pool<alq_context>().share(ctx);
    *out = pool<alq_event>().make(std::move(event));
    return {};
  });
}

alq_status alq_event_record(alq_event* event, const alq_stream* stream,
                            alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EventState * state, resolve(event));
    ALQ_ASSIGN(Stream * s, state->ctx->device->from_abi(stream));
    return state->ctx->device->record(*state->event, s);
  });
}

alq_status alq_event_wait(const alq_event* event, const alq_stream* stream,
                          alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EventState * state, resolve(event));
    ALQ_ASSIGN(Stream * s, state->ctx->device->from_abi(stream));
    return state->ctx->device->wait(s, *state->event,
                                    state->ctx->context->deadline(0));
  });
}

alq_status alq_event_query(const alq_event* event, int32_t* done,
                           alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_TRY(check_out(done, "done"));
    ALQ_ASSIGN(EventState * state, resolve(event));
    *done = state->ctx->device->done(*state->event) ? 1 : 0;
    return {};
  });
}

alq_status alq_event_sync(const alq_event* event, int64_t timeout_ns,
                          alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(EventState * state, resolve(event));
    ALQ_TRY(check_timeout(timeout_ns));
    return state->ctx->device->synchronize(
        *state->event, state->ctx->context->deadline(timeout_ns));
  });
}

void alq_event_release(alq_event* event) { release_handle(event); }

alq_status alq_work_wait(alq_work* work, int64_t timeout_ns, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(WorkState * state, resolve(work));
    ALQ_TRY(check_timeout(timeout_ns));
    return state->work->wait(state->ctx->context->deadline(timeout_ns));
  });
}

alq_status alq_work_query(const alq_work* work, int32_t* done, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_TRY(check_out(done, "done"));
    ALQ_ASSIGN(WorkState * state, resolve(work));
    *done = state->work->done() ? 1 : 0;
    return {};
  });
}

void alq_work_release(alq_work* work) { release_handle(work); }

alq_status alq_poll(alq_context* ctx, int32_t* busy, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(ContextState * state, resolve(ctx));
    state->host->runner()->run_queues(false);
    bool more = state->host->runner()->busy();
    if (busy != nullptr) *busy = more ? 1 : 0;
    return {};
  });
}

alq_status alq_buffer_alloc(alq_context* ctx, int64_t bytes, alq_buffer** out,
                            alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_TRY(check_out(out, "buffer"));
    *out = nullptr;
    ALQ_ASSIGN(ContextState * state, resolve(ctx));
    if (bytes <= 0) {
      return make_error(ALQ_INVALID_ARGUMENT,
                        "a buffer of {} bytes; ask for at least 1", bytes);
    }
    auto buffer = std::make_shared<BufferState>();
    ALQ_ASSIGN(buffer->memory, state->device->allocate(bytes, "buffer"));
    buffer->ctx = pool<alq_context>().share(ctx);
    *out = pool<alq_buffer>().make(std::move(buffer));
    return {};
  });
}

void* alq_buffer_data(const alq_buffer* buffer) {
  BufferState* state = pool<alq_buffer>().get(buffer);
  return state == nullptr ? nullptr : state->memory->data();
}

int64_t alq_buffer_bytes(const alq_buffer* buffer) {
  BufferState* state = pool<alq_buffer>().get(buffer);
  return state == nullptr ? 0 : state->memory->bytes();
}

void alq_buffer_release(alq_buffer* buffer) { release_handle(buffer); }
