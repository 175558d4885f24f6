// The objects behind the handles.  Each keeps its context alive, so handles may
// be released in any order.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "api/handle.h"
#include "comm/mem/join.h"
#include "device/cuda/cuda_device.h"
#include "engine/engine.h"
#include "mesh/mesh.h"

namespace aliquot::api {

struct ContextState {
  std::shared_ptr<Context> context;
  std::shared_ptr<Device> device;
  std::shared_ptr<CpuDevice> host;   // the device, or beside it
  std::shared_ptr<CudaDevice> cuda;  // the device, or null
  std::unique_ptr<MemJoin> join;     // BYTES: until connected
  std::shared_ptr<Group> world;      // the first one, of all ranks
  std::string bootstrap;             // how the ranks met, for runtime_info
  bool closed = false;
  uint64_t stamp = 0;  // fork_stamp() of the opening process
  std::mutex mutex;    // guards what follows
  std::map<void*, std::shared_ptr<Stream>> streams;
  std::shared_ptr<Group> shrunk_world;  // what is left of it, once it failed

  // Streams of CUDA are known to the caller by the driver's handle.
  void* handle_of(Stream& stream) {
    return cuda == nullptr ? &stream : cuda->native(stream);
  }

  ~ContextState() {
    if (cuda != nullptr) cuda->close();
  }

  // The world as it is now.
  std::shared_ptr<Group> living_world() {
    std::lock_guard lock(mutex);
    return shrunk_world != nullptr ? shrunk_world : world;
  }
};

struct EventState {
  std::shared_ptr<ContextState> ctx;
  std::shared_ptr<Event> event;
};
struct WorkState {
  std::shared_ptr<ContextState> ctx;
  std::shared_ptr<Work> work;
};
struct BufferState {
  std::shared_ptr<ContextState> ctx;
  std::unique_ptr<Memory> memory;
};
struct GroupState {
  std::shared_ptr<ContextState> ctx;
  std::shared_ptr<Group> group;
};
struct MeshState {
  std::shared_ptr<ContextState> ctx;
  std::shared_ptr<Mesh> mesh;
};
struct EngineState {
  std::shared_ptr<ContextState> ctx;
  std::shared_ptr<engine::Engine> engine;
  // Planned beside a committed engine; takes its place at the next commit.
  std::shared_ptr<engine::Engine> next;

  // Operations in flight keep what they use.
  ~EngineState() {
    if (engine != nullptr) engine->retire(engine);
  }

  const engine::Engine& latest() const {
    return next != nullptr ? *next : *engine;
  }
};

template <typename Opaque>
struct StateOf;
template <>
struct StateOf<alq_context> {
  using type = ContextState;
  static constexpr const char* kName = "context";
};
template <>
struct StateOf<alq_event> {
  using type = EventState;
  static constexpr const char* kName = "event";
};
template <>
struct StateOf<alq_work> {
  using type = WorkState;
  static constexpr const char* kName = "work";
};
template <>
struct StateOf<alq_buffer> {
  using type = BufferState;
  static constexpr const char* kName = "buffer";
};
template <>
struct StateOf<alq_group> {
  using type = GroupState;
  static constexpr const char* kName = "group";
};
template <>
struct StateOf<alq_mesh> {
  using type = MeshState;
  static constexpr const char* kName = "mesh";
};
template <>
struct StateOf<alq_engine> {
  using type = EngineState;
  static constexpr const char* kName = "engine";
};

template <typename Opaque>
auto& pool() {
  return HandlePool<Opaque, typename StateOf<Opaque>::type>::instance();
}

inline const ContextState& context_of(const ContextState& state) {
  return state;
}
template <typename State>
const ContextState& context_of(const State& state) {
  return *state.ctx;
}

// True in a child that was forked while contexts were open here.
bool forked(const ContextState& ctx);

// The object of a handle, or why there is none.
template <typename Opaque>
Result<typename StateOf<Opaque>::type*> resolve(const Opaque* handle) {
  const char* name = StateOf<Opaque>::kName;
  if (handle == nullptr) {
    return make_error(ALQ_INVALID_ARGUMENT, "the {} handle is null", name);
  }
  auto* state = pool<Opaque>().use(handle);
  if (state == nullptr) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "{} is not a live {} handle: it was released, or is "
                      "another kind of pointer",
                      static_cast<const void*>(handle), name);
  }
  if (forked(context_of(*state))) {
    return make_error(ALQ_FAILED_PRECONDITION,
                      "this process was forked after alq_open; a {} of the "
                      "parent can not be used here: open after the fork",
                      name);
  }
  return state;
}

// A finalizer must not touch shared state in a forked child.
template <typename Opaque>
void release_handle(Opaque* handle) {
  if (handle == nullptr) return;
  CallPins::Scope pins;
  auto* state = pool<Opaque>().use(handle);
  if (state == nullptr || forked(context_of(*state))) return;
  pool<Opaque>().release(handle);
}

}  // namespace aliquot::api
