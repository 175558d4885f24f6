// A site is the caller of the device's function, as an offset in its library,
// with the parts that event and stream play in the engine: it makes a stream
// for gathers and one for reductions, then the events of kOnce, then four per
// bundle.
#include "tests/doubles/cuda/sites.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>

namespace aliquot::cuda_double {
namespace {

constexpr int kFrames = 12;

uintptr_t offset_of(const void* address) {
  Dl_info info;
  if (dladdr(address, &info) == 0) return 0;
  return reinterpret_cast<uintptr_t>(address) -
         reinterpret_cast<uintptr_t>(info.dli_fbase);
}

// The frame above the one that `caller` is in.
const void* above(const void* caller) {
  void* frames[kFrames];
  int n = backtrace(frames, kFrames);
  for (int i = 0; i + 1 < n; ++i) {
    if (frames[i] == caller) return frames[i + 1];
  }
  return caller;
}

const char* event_name(const EventImpl& event, const ContextImpl& context) {
  constexpr const char* kOnce[] = {"updated", "used", "gathers", "reductions",
                                   "met"};
  constexpr int kFirst = std::size(kOnce);
  constexpr const char* kBundle[] = {"gathered", "reduced", "written", "read"};
  if (context.engine_streams < 0 || event.streams != context.engine_streams) {
    return "other";
  }
  if (event.number < kFirst) return kOnce[event.number];
  const int number = event.number - kFirst;
  return number < 4 * context.bundles ? kBundle[number % 4] : "other";
}

const char* stream_name(const StreamImpl& stream, const ContextImpl& context) {
  if (stream.number == 1) return "internal";
  if (stream.number == context.engine_streams) return "reduce";
  if (stream.number == context.engine_streams - 1) return "gather";
  return "caller";
}

}  // namespace

std::string site_of(const char* kind, const EventImpl& event,
                    const StreamImpl& stream, const void* caller) {
  State& s = state();
  if (!s.notes_sites && s.mutation.site.empty()) return {};
  char text[128];
  std::snprintf(text, sizeof text, "%s %zx %s %s", kind,
                static_cast<size_t>(offset_of(above(caller))),
                event_name(event, *stream.context),
                stream_name(stream, *stream.context));
  if (s.notes_sites) ++s.sites[text];
  return text;
}

}  // namespace aliquot::cuda_double

using namespace aliquot::cuda_double;

DOUBLE_API void double_sites(int on) {
  Lock lock(state().mutex);
  state().notes_sites = on != 0;
  state().sites.clear();
}

DOUBLE_API size_t double_sites_text(char* text, size_t size) {
  Lock lock(state().mutex);
  std::string all;
  for (const auto& [site, count] : state().sites) {
    all += site + " " + std::to_string(count) + "\n";
  }
  if (size > 0) {
    size_t n = std::min(size - 1, all.size());
    std::memcpy(text, all.data(), n);
    text[n] = 0;
  }
  return all.size() + 1;
}

DOUBLE_API void double_engine(int device, int bundles) {
  Lock lock(state().mutex);
  ContextImpl& context = *state().contexts[static_cast<size_t>(device)];
  context.engine_streams = context.streams;
  context.bundles = bundles;
}
