#include "tests/doubles/cuda/state.h"

#include <unistd.h>

#include <charconv>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/doubles/cuda/memory.h"
#include "tests/doubles/cuda_shim/host_kernels.h"

namespace aliquot::cuda_double {
namespace {

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

State* make_state() {
  auto* s = new State;
  s->seed = static_cast<uint64_t>(from_environment("ALIQUOT_DOUBLE_SEED", 1));
  s->delay_us = from_environment("ALIQUOT_DOUBLE_DELAY_US", 200);
  int64_t devices = from_environment("ALIQUOT_DOUBLE_DEVICES", 2);
  for (int d = 0; d < devices; ++d) {
    s->contexts.push_back(new ContextImpl);
    s->contexts.back()->device = d;
  }
  return s;
}

std::vector<ContextImpl*>& stack() {
  thread_local std::vector<ContextImpl*> contexts;
  return contexts;
}

constexpr const char* kMutations[] = {
    "drop_wait",  "drop_record",    "early_done",   "swap_arguments",
    "short_tail", "short_grid",     "drop_launch",  "late_arguments",
    "short_copy", "default_stream", "other_stream", "ignore_skip"};

// "PREFIXvalue,rest": false if there is no comma.
bool take_prefix(std::string_view prefix, std::string_view& rest,
                 std::string& value) {
  if (!rest.starts_with(prefix)) return true;
  rest.remove_prefix(prefix.size());
  size_t comma = rest.find(',');
  if (comma == std::string_view::npos) return false;
  value = rest.substr(0, comma);
  rest.remove_prefix(comma + 1);
  return true;
}

[[gnu::constructor]] void load() {
  cuda_host_seed(state().seed);
  const char* mutation = std::getenv("ALIQUOT_DOUBLE_MUTATE");
  if (mutation != nullptr && double_mutate(mutation) != 0) {
    violation("ALIQUOT_DOUBLE_MUTATE=%s is not known", mutation);
  }
}

[[gnu::destructor]] void unload() {
  check_memory();
  int n = state().violations.load();
  if (n == 0) return;
  std::fflush(nullptr);
  std::fprintf(stderr, "double: %d violations\n", n);
  _exit(97);
}

}  // namespace

State& state() {
  static State* s = make_state();
  return *s;
}

void count(const char* what) {
  Lock lock(state().mutex);
  ++state().counts[what];
}

void violation(const char* format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  std::fprintf(stderr, "double: violation: %s\n", text);
  state().violations.fetch_add(1);
}

bool mutate(const char* name, const char* kernel, const std::string& site) {
  Lock lock(state().mutex);
  Mutation& m = state().mutation;
  if (m.name != name) return false;
  if (!m.kernel.empty() &&
      (kernel == nullptr ||
       std::string_view(kernel).find(m.kernel) == std::string_view::npos)) {
    return false;
  }
  if (!site.starts_with(m.site)) return false;
  ++m.seen;
  bool hit =
      m.at == 0 || (m.name == "early_done" ? m.seen >= m.at : m.seen == m.at);
  if (hit) ++state().mutated;
  return hit;
}

CUresult injected(const char* entry, ContextImpl* context) {
  Lock lock(state().mutex);
  auto& failures = state().failures;
  for (auto it = failures.begin(); it != failures.end(); ++it) {
    if (it->entry != entry || --it->at > 0) continue;
    CUresult result = it->result;
    if (it->sticky && context != nullptr) context->sticky = result;
    failures.erase(it);
    return result;
  }
  return kSuccess;
}

ContextImpl* current_context() {
  return stack().empty() ? nullptr : stack().back();
}
void push_context(ContextImpl* context) { stack().push_back(context); }
ContextImpl* pop_context() {
  ContextImpl* top = current_context();
  if (top != nullptr) stack().pop_back();
  return top;
}
int& thread_capture_mode() {
  thread_local int mode = kCaptureModeGlobal;
  return mode;
}

}  // namespace aliquot::cuda_double

using namespace aliquot::cuda_double;

DOUBLE_API void double_violation(const char* text) { violation("%s", text); }

DOUBLE_API int double_violations(void) { return state().violations.load(); }

DOUBLE_API void double_forgive(void) { state().violations = 0; }

DOUBLE_API int64_t double_count(const char* what) {
  Lock lock(state().mutex);
  auto it = state().counts.find(what);
  return it == state().counts.end() ? 0 : it->second;
}

DOUBLE_API void double_reset_counts(void) {
  Lock lock(state().mutex);
  state().counts.clear();
}

DOUBLE_API void double_seed(uint64_t seed) {
  state().seed = seed;
  cuda_host_seed(seed);
}

DOUBLE_API void double_delay_us(int64_t longest) { state().delay_us = longest; }

DOUBLE_API void double_step(int on) { state().step = on != 0; }

DOUBLE_API int double_mutate(const char* text) {
  Mutation m;
  std::string_view rest = text == nullptr ? "" : text;
  if (!take_prefix("name=", rest, m.kernel) ||
      !take_prefix("site=", rest, m.site)) {
    return -1;
  }
  if (!rest.empty()) {
    size_t colon = rest.find(':');
    m.name = rest.substr(0, colon);
    m.at = 1;
    if (colon != std::string_view::npos) {
      std::string_view number = rest.substr(colon + 1);
      const char* end = number.data() + number.size();
      auto [at, error] = std::from_chars(number.data(), end, m.at);
      if (error != std::errc() || at != end || m.at < 0) return -1;
    }
    bool known = false;
    for (const char* name : kMutations) known = known || m.name == name;
    if (!known) return -1;
  }
  Lock lock(state().mutex);
  state().mutation = m;
  state().mutated = 0;
  return 0;
}

DOUBLE_API int64_t double_mutated(void) {
  Lock lock(state().mutex);
  return state().mutated;
}

DOUBLE_API void double_fail(const char* entry, int result, int sticky) {
  double_fail_at(entry, 1, result, sticky);
}

DOUBLE_API void double_fail_at(const char* entry, int64_t n, int result,
                               int sticky) {
  Lock lock(state().mutex);
  state().failures.push_back({entry, result, sticky != 0, n});
}

DOUBLE_API int64_t double_unfail(void) {
  Lock lock(state().mutex);
  auto left = static_cast<int64_t>(state().failures.size());
  state().failures.clear();
  return left;
}

DOUBLE_API void double_free_waits(int on) { state().free_waits = on != 0; }

DOUBLE_API void double_default_streams(int on) {
  state().default_streams = on != 0;
}
