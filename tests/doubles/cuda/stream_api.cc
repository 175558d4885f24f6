// The driver's stream and event functions.
#include "tests/doubles/cuda/sites.h"
#include "tests/doubles/cuda/stream.h"

using namespace aliquot::cuda_double;

namespace {

// The next stream gets the handle of the last that was destroyed: so may the
// driver's, and whoever knows streams by their handles takes one for another.
std::vector<void*>& spare_handles() {
  static auto* spare = new std::vector<void*>;
  return *spare;
}

StreamImpl* make_stream(ContextImpl* context, unsigned flags) {
  if (spare_handles().empty()) return new StreamImpl(context, flags);
  void* place = spare_handles().back();
  spare_handles().pop_back();
  return new (place) StreamImpl(context, flags);
}

void destroy_stream(StreamImpl* stream) {
  stream->~StreamImpl();
  spare_handles().push_back(stream);
}

}  // namespace

DOUBLE_API CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags,
                                               int) {
  Lock lock(state().mutex);
  if (stream == nullptr || flags > kStreamNonBlocking) return kInvalidValue;
  ContextImpl* context = current_context();
  if (context == nullptr) return kInvalidContext;
  if (CUresult failed = injected("cuStreamCreate", context)) return failed;
  if (CUresult sticky = context->sticky) return sticky;
  count("stream");
  auto* s = make_stream(context, flags);
  s->number = ++context->streams;
  context->events_since = 0;
  handles().streams.insert(s);
  *stream = reinterpret_cast<CUstream>(s);
  return kSuccess;
}

DOUBLE_API CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

DOUBLE_API CUresult cuStreamDestroy_v2(CUstream stream) {
  Lock lock(state().mutex);
  StreamImpl* s = find_stream(stream, "cuStreamDestroy");
  if (s == nullptr) return kInvalidHandle;
  if (s->capture != nullptr) s->capture->invalid = true;
  handles().streams.erase(s);
  s->close();  // what it holds is still run
  destroy_stream(s);
  return kSuccess;
}

DOUBLE_API CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  Lock lock(state().mutex);
  StreamImpl* s = find_stream(stream, "cuStreamGetCtx");
  if (s == nullptr) return kInvalidHandle;
  if (CUresult failed = injected("cuStreamGetCtx", s->context)) return failed;
  *context = handle(s->context);
  return kSuccess;
}

DOUBLE_API CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  Lock lock(state().mutex);
  StreamImpl* s = find_stream(stream, "cuStreamGetId");
  if (s == nullptr) return kInvalidHandle;
  if (CUresult failed = injected("cuStreamGetId", s->context)) return failed;
  *id = s->id;
  return kSuccess;
}

DOUBLE_API CUresult cuStreamQuery(CUstream stream) {
  Lock lock(state().mutex);
  count("query");
  StreamImpl* s = find_stream(stream, "cuStreamQuery");
  if (s == nullptr) return kInvalidHandle;
  if (CUresult sticky = s->context->sticky) return sticky;
  if (s->capture != nullptr) {
    s->capture->invalid = true;
    return kCaptureUnsupported;
  }
  return s->idle() ? kSuccess : kNotReady;
}

DOUBLE_API CUresult cuStreamSynchronize(CUstream stream) {
  StreamImpl* s = nullptr;
  {
    Lock lock(state().mutex);
    count("sync");
    count("host_sync");
    s = find_stream(stream, "cuStreamSynchronize");
    if (s == nullptr) return kInvalidHandle;
    if (CUresult unsafe = check_unsafe("cuStreamSynchronize")) return unsafe;
    if (CUresult sticky = s->context->sticky) return sticky;
    if (s->capture != nullptr) {
      s->capture->invalid = true;
      return kCaptureUnsupported;
    }
  }
  s->drain();
  return s->context->sticky;
}

DOUBLE_API CUresult cuCtxSynchronize(void) {
  std::vector<StreamImpl*> streams;
  ContextImpl* context = current_context();
  if (context == nullptr) return kInvalidContext;
  {
    Lock lock(state().mutex);
    count("sync");
    count("host_sync");
    if (CUresult unsafe = check_unsafe("cuCtxSynchronize")) return unsafe;
    for (StreamImpl* s : handles().streams) {
      if (s->context == context) streams.push_back(s);
    }
  }
  for (StreamImpl* s : streams) s->drain();
  return context->sticky;
}

DOUBLE_API CUresult cuEventCreate(CUevent* event, unsigned flags) {
  Lock lock(state().mutex);
  if (event == nullptr) return kInvalidValue;
  ContextImpl* context = current_context();
  if (context == nullptr) return kInvalidContext;
  if (CUresult failed = injected("cuEventCreate", context)) return failed;
  if (CUresult sticky = context->sticky) return sticky;
  count("event");
  auto* e = new EventImpl;
  e->flags = flags;
  e->context = context;
  e->streams = context->streams;
  e->number = context->events_since++;
  handles().events.insert(e);
  *event = reinterpret_cast<CUevent>(e);
  return kSuccess;
}

DOUBLE_API CUresult cuEventDestroy_v2(CUevent event) {
  Lock lock(state().mutex);
  EventImpl* e = find_event(event);
  if (e == nullptr) return kInvalidHandle;
  handles().events.erase(e);
  delete e;
  return kSuccess;
}

DOUBLE_API CUresult cuEventRecord(CUevent event, CUstream stream) {
  Lock lock(state().mutex);
  count("record");
  EventImpl* e = find_event(event);
  StreamImpl* s = find_stream(stream, "cuEventRecord");
  if (e == nullptr || s == nullptr) return kInvalidHandle;
  if (current_context() == nullptr) return kInvalidContext;
  if (e->context != s->context) return kInvalidHandle;
  const std::string site =
      site_of("record", *e, *s, __builtin_return_address(0));
  if (CUresult failed = injected("cuEventRecord", s->context)) return failed;
  if (CUresult sticky = s->context->sticky) return sticky;
  if (s->capture != nullptr && s->capture->invalid) return kCaptureInvalidated;
  if (mutate("drop_record", nullptr, site)) return kSuccess;
  if (s->capture != nullptr) {
    e->capture = s->capture;
    e->after = s->tail;
    e->point = nullptr;
    return kSuccess;
  }
  e->capture = nullptr;
  e->point = std::make_shared<Point>();
  s->push([point = e->point] { point->set(); });
  return kSuccess;
}

DOUBLE_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event,
                                      unsigned) {
  Lock lock(state().mutex);
  count("wait");
  EventImpl* e = find_event(event);
  StreamImpl* s = find_stream(stream, "cuStreamWaitEvent");
  if (e == nullptr || s == nullptr) return kInvalidHandle;
  if (current_context() == nullptr) return kInvalidContext;
  const std::string site = site_of("wait", *e, *s, __builtin_return_address(0));
  if (CUresult failed = injected("cuStreamWaitEvent", s->context)) {
    return failed;
  }
  if (CUresult sticky = s->context->sticky) return sticky;
  if (s->capture != nullptr && s->capture->invalid) return kCaptureInvalidated;
  if (e->capture != nullptr) {
    if (e->capture->ended) return kCapturedEvent;
    if (s->capture != nullptr && s->capture != e->capture) {
      s->capture->invalid = e->capture->invalid = true;
      return kCaptureMerge;
    }
    if (mutate("drop_wait", nullptr, site)) return kSuccess;
    if (s->capture == nullptr) join(s, e->capture);
    add(s->tail, e->after);
    return kSuccess;
  }
  if (e->point == nullptr) return kSuccess;
  if (s->capture != nullptr) {
    s->capture->invalid = true;
    return kCaptureIsolation;
  }
  if (mutate("drop_wait", nullptr, site)) return kSuccess;
  s->push([point = e->point] { point->wait(); });
  return kSuccess;
}

DOUBLE_API CUresult cuEventQuery(CUevent event) {
  Lock lock(state().mutex);
  count("query");
  EventImpl* e = find_event(event);
  if (e == nullptr) return kInvalidHandle;
  ContextImpl* context = current_context();
  if (CUresult failed = injected("cuEventQuery", context)) return failed;
  if (context != nullptr && context->sticky != kSuccess) {
    return context->sticky;
  }
  if (CUresult unsafe = check_capture()) return unsafe;
  // No item of it ran, so whoever asks spoils the capture.
  if (e->capture != nullptr) {
    e->capture->invalid = true;
    return kCapturedEvent;
  }
  if (e->point == nullptr || e->point->reached()) return kSuccess;
  return mutate("early_done") ? kSuccess : kNotReady;
}

DOUBLE_API CUresult cuEventSynchronize(CUevent event) {
  std::shared_ptr<Point> point;
  {
    Lock lock(state().mutex);
    count("sync");
    count("host_sync");
    EventImpl* e = find_event(event);
    if (e == nullptr) return kInvalidHandle;
    if (CUresult unsafe = check_unsafe("cuEventSynchronize")) return unsafe;
    if (e->capture != nullptr) {
      e->capture->invalid = true;
      return kCapturedEvent;
    }
    point = e->point;
  }
  if (point != nullptr) point->wait();
  ContextImpl* context = current_context();
  return context == nullptr ? kSuccess : context->sticky.load();
}

DOUBLE_API int64_t double_live_handles(void) {
  Lock lock(state().mutex);
  auto live =
      static_cast<int64_t>(handles().streams.size() + handles().events.size());
  for (ContextImpl* context : state().contexts) live += context->retained;
  return live + state().modules;
}
