// alq_open and what hangs off a context directly.
#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "api/guard.h"
#include "api/opening.h"
#include "api/state.h"
#include "comm/bootstrap/bootstrap.h"
#include "device/cpu/fork.h"

using namespace aliquot;       // the ABI is the outermost layer
using namespace aliquot::api;  // NOLINT

namespace aliquot::api {

bool forked(const ContextState& ctx) { return ctx.stamp != fork_stamp(); }

namespace {

Status check_abi(uint32_t version) {
  if (version >> 16 == ALQ_ABI_MAJOR) return {};
  return make_error(ALQ_UNIMPLEMENTED,
                    "the caller was built for ABI {}.{}, this library has "
                    "{}.{}; use a library with the same major",
                    version >> 16, version & 0xffff, ALQ_ABI_MAJOR,
                    ALQ_ABI_MINOR);
}

Status check_desc(const alq_open_desc& desc) {
  if (desc.flags != 0 || desc.next != nullptr) {
    return make_error(ALQ_UNIMPLEMENTED,
                      "alq_open_desc: flags {:#x} and extension blocks are not "
                      "known here; leave both zero",
                      desc.flags);
  }
  if (desc.timeout_ns < 0 || !(desc.time_scale >= 0) || desc.time_scale > 1e6) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "alq_open_desc: timeout_ns {} and time_scale {} must not "
                      "be negative (time_scale at most 1e6)",
                      desc.timeout_ns, desc.time_scale);
  }
  if (desc.local_size < 0 ||
      (desc.local_size > 0 &&
       (desc.local_rank < 0 || desc.local_rank >= desc.local_size))) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "alq_open_desc: local_rank {} must be below local_size "
                      "{}",
                      desc.local_rank, desc.local_size);
  }
  return check_device(desc);
}

// Where this rank stands, whatever told us.
Result<Place> place_of(const alq_open_desc& desc) {
  Place place;
  switch (desc.bootstrap) {
    case ALQ_BOOTSTRAP_AUTO: return place_from_environment();
    case ALQ_BOOTSTRAP_SINGLE: place.source = "single"; return place;
    case ALQ_BOOTSTRAP_ENV: {
      ALQ_ASSIGN(place, place_from_environment());
      if (place.source != "none") return place;
      return make_error(ALQ_FAILED_PRECONDITION,
                        "bootstrap ENV, but the environment names no rank: "
                        "start with aliquot run or torchrun, or set "
                        "ALIQUOT_RANK, ALIQUOT_WORLD_SIZE, ALIQUOT_STORE and "
                        "ALIQUOT_SECRET");
    }
    case ALQ_BOOTSTRAP_STORE: place.source = "store"; break;
    case ALQ_BOOTSTRAP_BYTES: place.source = "bytes"; break;
    case ALQ_BOOTSTRAP_LOCAL: place.source = "local"; break;
    default:
      return make_error(ALQ_INVALID_ARGUMENT, "unknown bootstrap {}",
                        desc.bootstrap);
  }
  if (desc.world_size < 1 || desc.rank < 0 || desc.rank >= desc.world_size) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "rank {} of a world of {}: ranks count from 0 and the "
                      "world has at least 1",
                      desc.rank, desc.world_size);
  }
  place.rank = desc.rank;
  place.size = desc.world_size;
  place.local_rank = desc.local_size > 0 ? desc.local_rank : desc.rank;
  place.local_size = desc.local_size > 0 ? desc.local_size : desc.world_size;
  if (desc.store_address != nullptr) place.address = desc.store_address;
  if (desc.store_secret != nullptr) place.secret = desc.store_secret;
  if (desc.bootstrap == ALQ_BOOTSTRAP_STORE && place.size > 1 &&
      (place.address.empty() || place.secret.empty())) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "bootstrap STORE needs store_address (\"host:port\") and "
                      "store_secret");
  }
  if (desc.bootstrap == ALQ_BOOTSTRAP_LOCAL &&
      (desc.world_name == nullptr || desc.world_name[0] == 0)) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "bootstrap LOCAL needs world_name: threads that give the "
                      "same name form a world");
  }
  return place;
}

Result<std::vector<Bytes>> exchange(const Place& place,
                                    const alq_open_desc& desc, Bytes mine,
                                    Deadline deadline) {
  if (place.size == 1) return std::vector<Bytes>{std::move(mine)};
  std::unique_ptr<Bootstrap> bootstrap;
  if (place.source == "local") {
    ALQ_ASSIGN(bootstrap,
               local_bootstrap(desc.world_name, place.rank, place.size));
  } else {
    ALQ_ASSIGN(bootstrap, store_bootstrap(place, deadline));
  }
  return bootstrap->all_gather(exchange_key("world", place.generation),
                               std::move(mine), deadline);
}

Status meet(const Place& place, const alq_open_desc& desc,
            ContextState* state) {
  Context& context = *state->context;
  Deadline deadline = context.deadline(0);
  ALQ_TRY(context.faults.point("bootstrap.gather"));
  ALQ_ASSIGN(std::vector<Bytes> blobs,
             exchange(place, desc, state->join->blob(), deadline));
  return connect_world(state, blobs, deadline);
}

Flight::Names call_names() {
  Flight::Names names;
  for (int32_t k = 0; k <= static_cast<int32_t>(CollKind::kRecv); ++k) {
    names.kinds.emplace_back(coll_name(static_cast<CollKind>(k)));
  }
  for (Dtype d = 0; d <= ALQ_F8E5M2; ++d) {
    names.dtypes.emplace_back(dtype_size(d) == 0 ? "" : dtype_name(d));
  }
  return names;
}

Result<std::shared_ptr<ContextState>> open(const alq_open_desc& desc) {
  ALQ_TRY(check_desc(desc));
  ALQ_ASSIGN(Place place, place_of(desc));
  auto state = std::make_shared<ContextState>();
  state->stamp = fork_stamp();
  state->bootstrap = place.source;
  state->context = std::make_shared<Context>(place.rank, place.size);
  Context& context = *state->context;
  context.local_rank = place.local_rank;
  context.local_size = place.local_size;
  if (desc.time_scale > 0) context.time_scale = desc.time_scale;
  if (desc.timeout_ns > 0) context.timeout_ns = desc.timeout_ns;
  std::string flight_dir;
  if (const char* dir = std::getenv("ALIQUOT_FLIGHT_DIR"); dir != nullptr) {
    flight_dir = dir;
  }
  ALQ_TRY(read_hints(std::getenv("ALIQUOT_HINTS"), &context, &flight_dir));
  ALQ_TRY(read_hints(desc.hints, &context, &flight_dir));
  if (!flight_dir.empty()) {
    ALQ_ASSIGN(context.flight, Flight::create(flight_dir, context.rank,
                                              context.size, call_names()));
  }
  if (const char* fault = std::getenv("ALIQUOT_FAULT"); fault != nullptr) {
    ALQ_TRY(context.faults.arm(fault));
  }
  ALQ_TRY(open_device(desc, state.get()));
  ALQ_ASSIGN(state->join, MemJoin::create(state->context, state->host));
  if (desc.bootstrap == ALQ_BOOTSTRAP_BYTES) return state;
  Status met = meet(place, desc, state.get());
  if (met.ok()) return state;
  if (met.rank() < 0) met = std::move(met).with_rank(context.rank);
  if (context.flight != nullptr) context.flight->fail(met);
  return met;
}

}  // namespace
}  // namespace aliquot::api

alq_status alq_open(uint32_t abi_version, const alq_open_desc* desc,
                    alq_context** out, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_TRY(check_out(out, "context"));
    *out = nullptr;
    ALQ_TRY(check_abi(abi_version));
    alq_open_desc known = {};
    if (desc != nullptr) ALQ_TRY(read_struct("alq_open_desc", desc, &known));
    ALQ_ASSIGN(auto state, open(known));
    *out = pool<alq_context>().make(std::move(state));
    return {};
  });
}

alq_status alq_bootstrap_blob(alq_context* ctx, void* buf, size_t cap,
                              size_t* need, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(ContextState * state, resolve(ctx));
    if (state->join == nullptr) {
      return make_error(ALQ_FAILED_PRECONDITION,
                        "this context is connected; only an unconnected BYTES "
                        "context has a blob");
    }
    const std::string& blob = state->join->blob();
    if (need != nullptr) *need = blob.size();
    if (buf == nullptr && cap == 0) return {};
    if (buf == nullptr || cap < blob.size()) {
      return make_error(ALQ_INVALID_ARGUMENT,
                        "the blob has {} bytes, the buffer {}", blob.size(),
                        buf == nullptr ? 0 : cap);
    }
    std::memcpy(buf, blob.data(), blob.size());
    return {};
  });
}

alq_status alq_connect(alq_context* ctx, const void* blobs, size_t blob_bytes,
                       int64_t timeout_ns, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(ContextState * state, resolve(ctx));
    if (state->join == nullptr) {
      return make_error(ALQ_FAILED_PRECONDITION, "the context is connected");
    }
    if (blobs == nullptr || blob_bytes != state->join->blob().size() ||
        timeout_ns < 0) {
      return make_error(
          ALQ_INVALID_ARGUMENT,
          "connect needs {} blobs of {} bytes one after the other "
          "(got {} bytes each) and a timeout of at least 0",
          state->context->size, state->join->blob().size(), blob_bytes);
    }
    std::vector<Bytes> all;
    for (int32_t r = 0; r < state->context->size; ++r) {
      all.emplace_back(
          static_cast<const char*>(blobs) + static_cast<size_t>(r) * blob_bytes,
          blob_bytes);
    }
    return connect_world(state, all, state->context->deadline(timeout_ns));
  });
}

int32_t alq_context_rank(const alq_context* ctx) {
  ContextState* state = pool<alq_context>().get(ctx);
  return state == nullptr ? -1 : state->context->rank;
}

int32_t alq_context_size(const alq_context* ctx) {
  ContextState* state = pool<alq_context>().get(ctx);
  return state == nullptr ? -1 : state->context->size;
}

alq_status alq_close(alq_context* ctx, int64_t timeout_ns, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(ContextState * state, resolve(ctx));
    if (timeout_ns < 0) {
      return make_error(ALQ_INVALID_ARGUMENT, "timeout_ns {} is negative",
                        timeout_ns);
    }
    if (state->closed || state->world == nullptr) {
      state->closed = true;
      return {};
    }
    Deadline deadline = state->context->deadline(timeout_ns);
    std::map<void*, std::shared_ptr<Stream>> streams;
    {
      std::lock_guard lock(state->mutex);
      streams = state->streams;
    }
    for (auto& [handle, stream] : streams) {
      ALQ_TRY(state->device->synchronize(*stream, deadline));
    }
    ALQ_TRY(state->living_world()->close(deadline));
    if (state->cuda != nullptr) state->cuda->close();
    state->closed = true;
    if (state->context->flight != nullptr) state->context->flight->close();
    return {};
  });
}

alq_status alq_abort(alq_context* ctx, const char* reason, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(ContextState * state, resolve(ctx));
    if (state->world == nullptr) return {};
    state->world->abort(
        make_error(ALQ_ABORTED, "{}",
                   reason == nullptr ? "no reason given" : reason)
            .with_rank(state->context->rank));
    return {};
  });
}

void alq_release(alq_context* ctx) { release_handle(ctx); }

alq_status alq_runtime_info(const alq_context* ctx, char* buf, size_t cap,
                            size_t* need, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(ContextState * state, resolve(ctx));
    const Context& c = *state->context;
    nlohmann::ordered_json j;
    j["rank"] = c.rank;
    j["world_size"] = c.size;
    j["local_rank"] = c.local_rank;
    j["local_size"] = c.local_size;
    j["bootstrap"] = state->bootstrap;
    j["connected"] = state->world != nullptr;
    j["device"] = state->cuda == nullptr ? "cpu" : "cuda";
    if (state->cuda != nullptr) {
      j["cuda"] = nlohmann::ordered_json::parse(state->cuda->info().dump());
    }
    j["backend"] = state->cuda == nullptr ? "mem" : "nccl";
    j["libraries"] = nlohmann::ordered_json::parse(c.libraries.json().dump());
    if (state->world != nullptr) {
      PrivateMemory memory = state->world->private_memory();
      j["private_memory"] = {{"access", memory.access},
                             {"stage_sums", memory.stage_sums},
                             {"stage_copies", memory.stage_copies},
                             {"stage_streams", memory.streams}};
    }
    j["simd"] = kernels::simd_chosen();
    j["simd_targets"] = kernels::simd_targets();
    j["timeout_s"] = static_cast<double>(c.timeout_ns) * 1e-9;
    j["time_scale"] = c.time_scale;
    return write_text(j.dump(2), buf, cap, need);
  });
}

alq_status alq_log_read(alq_context* ctx, char* buf, size_t cap, size_t* need,
                        alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(ContextState * state, resolve(ctx));
    LogRing& log = state->context->log;
    std::string line = log.peek();
    if (line.empty()) {
      if (need != nullptr) *need = 0;
      return {};
    }
    ALQ_TRY(write_text(line, buf, cap, need));
    // Asking for the size leaves the line in place.
    if (cap > 0) log.pop();
    return {};
  });
}

alq_status alq_fault_set(alq_context* ctx, const char* spec, alq_error* err) {
  return guard(err, [&]() -> Status {
    ALQ_ASSIGN(ContextState * state, resolve(ctx));
    return state->context->faults.arm(spec == nullptr ? "" : spec);
  });
}
