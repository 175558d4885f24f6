// Stream capture: a stream of a capture notes nodes instead of running items.
#include <algorithm>

#include "tests/doubles/cuda/stream.h"

namespace aliquot::cuda_double {

void add(std::vector<size_t>& into, const std::vector<size_t>& more) {
  for (size_t node : more) {
    if (std::find(into.begin(), into.end(), node) == into.end()) {
      into.push_back(node);
    }
  }
}

void join(StreamImpl* s, const std::shared_ptr<Capture>& capture) {
  s->capture = capture;
  s->tail.clear();
  s->lane = capture->streams.size();
  capture->streams.push_back(s);
}

CUresult check_unsafe(const char* caller) {
  if (state().step) violation("%s in a step", caller);
  return check_capture();
}

CUresult check_capture() {
  Lock lock(state().mutex);
  int mode = thread_capture_mode();
  if (mode == kCaptureModeRelaxed) return kSuccess;
  CUresult result = kSuccess;
  for (auto& weak : handles().captures) {
    std::shared_ptr<Capture> capture = weak.lock();
    if (capture == nullptr || capture->ended) continue;
    bool mine = capture->owner == std::this_thread::get_id() &&
                capture->mode != kCaptureModeRelaxed;
    bool global =
        mode == kCaptureModeGlobal && capture->mode == kCaptureModeGlobal;
    if (mine || global) {
      capture->invalid = true;
      result = kCaptureUnsupported;
    }
  }
  return result;
}

namespace {

// After this all its streams are as before.
void leave(const std::shared_ptr<Capture>& capture) {
  capture->ended = true;
  for (StreamImpl* s : capture->streams) {
    if (handles().streams.count(s) == 0) continue;
    s->capture = nullptr;
    s->tail.clear();
  }
}

// Does the origin come after everything captured?
bool joined(const Capture& capture) {
  std::vector<bool> before(capture.nodes.size(), false);
  std::vector<size_t> todo = capture.origin->tail;
  while (!todo.empty()) {
    size_t node = todo.back();
    todo.pop_back();
    if (before[node]) continue;
    before[node] = true;
    add(todo, capture.nodes[node].after);
  }
  return std::find(before.begin(), before.end(), false) == before.end();
}

int status_of(const StreamImpl& s) {
  if (s.capture == nullptr) return kCaptureStatusNone;
  return s.capture->invalid ? kCaptureStatusInvalidated : kCaptureStatusActive;
}

}  // namespace
}  // namespace aliquot::cuda_double

using namespace aliquot::cuda_double;

DOUBLE_API CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  if (CUresult failed =
          injected("cuThreadExchangeStreamCaptureMode", nullptr)) {
    return failed;
  }
  if (mode == nullptr || *mode < 0 || *mode > 2) return kInvalidValue;
  std::swap(*mode, thread_capture_mode());
  return kSuccess;
}

DOUBLE_API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
  Lock lock(state().mutex);
  StreamImpl* s = find_stream(stream, "cuStreamBeginCapture");
  if (s == nullptr) return kInvalidHandle;
  if (s->capture != nullptr || mode < 0 || mode > 2) return kInvalidValue;
  auto capture = std::make_shared<Capture>();
  capture->id = ++handles().captured;
  capture->origin = s;
  capture->mode = mode;
  capture->owner = std::this_thread::get_id();
  std::erase_if(handles().captures,
                [](const auto& weak) { return weak.expired(); });
  handles().captures.push_back(capture);
  join(s, capture);
  return kSuccess;
}

DOUBLE_API CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  Lock lock(state().mutex);
  *graph = nullptr;
  StreamImpl* s = find_stream(stream, "cuStreamEndCapture");
  if (s == nullptr) return kInvalidHandle;
  std::shared_ptr<Capture> capture = s->capture;
  if (capture == nullptr) return kInvalidValue;
  if (capture->origin != s) {
    capture->invalid = true;
    return kCaptureUnmatched;
  }
  if (capture->mode != kCaptureModeRelaxed &&
      capture->owner != std::this_thread::get_id()) {
    return kCaptureWrongThread;
  }
  bool whole = joined(*capture);
  leave(capture);
  if (capture->invalid) return kCaptureInvalidated;
  if (!whole) return kCaptureUnjoined;
  *graph = reinterpret_cast<CUgraph>(new std::shared_ptr<Capture>(capture));
  return kSuccess;
}

DOUBLE_API CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int* status,
                                              uint64_t* id, CUgraph* graph,
                                              const CUgraphNode** after,
                                              size_t* count_out) {
  Lock lock(state().mutex);
  StreamImpl* s = find_stream(stream, "cuStreamGetCaptureInfo");
  if (s == nullptr) return kInvalidHandle;
  if (graph != nullptr || after != nullptr || count_out != nullptr) {
    violation("cuStreamGetCaptureInfo for more than status and id");
  }
  if (CUresult failed = injected("cuStreamGetCaptureInfo", s->context)) {
    return failed;
  }
  *status = status_of(*s);
  // Of another status it says nothing.
  if (id != nullptr && *status == kCaptureStatusActive) *id = s->capture->id;
  return kSuccess;
}

DOUBLE_API CUresult cuStreamIsCapturing(CUstream stream, int* status) {
  Lock lock(state().mutex);
  StreamImpl* s = find_stream(stream, "cuStreamIsCapturing");
  if (s == nullptr) return kInvalidHandle;
  *status = status_of(*s);
  return kSuccess;
}

DOUBLE_API int double_enqueue(CUstream_st* stream, void (*run)(void*),
                              void* argument) {
  return double_enqueue_held(stream, run, nullptr, argument);
}

DOUBLE_API int double_enqueue_held(CUstream_st* stream, void (*run)(void*),
                                   void (*drop)(void*), void* argument) {
  count("enqueue");
  std::shared_ptr<void> held(argument, [drop](void* p) {
    if (drop != nullptr) drop(p);
  });
  return submit(reinterpret_cast<CUstream>(stream), "double_enqueue",
                [run, held = std::move(held)] { run(held.get()); });
}
