// The choice of the SIMD target.  A target is usable when the CPU has every
// feature that Highway's pragma for it enables and the system saves its
// registers (__builtin_cpu_supports checks both for AVX2 and AVX-512).
#include "kernels/cpu/dispatch.h"

#include <atomic>
#include <string>

#include "kernels/cpu/simd.h"
// The order of these two matters.
#include <hwy/detect_targets.h>

#include "kernels/ops.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace aliquot::kernels {
namespace {

constexpr size_t kUnset = kTargets;
std::atomic<size_t> chosen{kUnset};

#if defined(__x86_64__)
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool cpu_has(size_t target) {
  __builtin_cpu_init();
  const bool sse4 = __builtin_cpu_supports("ssse3") &&
                    __builtin_cpu_supports("sse4.1") &&
                    __builtin_cpu_supports("sse4.2");
  const bool avx2 = sse4 && __builtin_cpu_supports("avx2") &&
                    __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("fma") && has_f16c();
  if (target == kSse4) return sse4;
  if (target == kAvx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw");
}
#else
bool cpu_has(size_t) { return false; }
#endif

constexpr const char* baseline_name() {
#if HWY_STATIC_TARGET == HWY_SCALAR
  return "SCALAR";
#elif HWY_STATIC_TARGET == HWY_NEON
  return "NEON";
#else
  return "BASELINE";
#endif
}

size_t best_target() {
  for (size_t t = 0; t < kBaseline; ++t) {
    if (target_usable(t)) return t;
  }
  return kBaseline;
}

std::string list_targets() {
  std::string names;
  for (size_t t = 0; t < kTargets; ++t) {
    if (!target_compiled(t)) continue;
    if (!names.empty()) names += ' ';
    names += target_name(t);
  }
  return names;
}

}  // namespace

const char* target_name(size_t target) {
  constexpr const char* kNames[] = {"AVX3", "AVX2", "SSE4", baseline_name()};
  return target < kTargets ? kNames[target] : "?";
}

bool target_compiled(size_t target) {
  constexpr bool kCompiled[] = {(HWY_TARGETS & HWY_AVX3) != 0,
                                (HWY_TARGETS & HWY_AVX2) != 0,
                                (HWY_TARGETS & HWY_SSE4) != 0, true};
  return target < kTargets && kCompiled[target];
}

bool target_usable(size_t target) {
  if (!target_compiled(target)) return false;
  return target == kBaseline || cpu_has(target);
}

size_t chosen_target() {
  size_t target = chosen.load(std::memory_order_relaxed);
  if (target == kUnset) {
    target = best_target();
    chosen.store(target, std::memory_order_relaxed);
  }
  return target;
}

bool force_target(size_t target) {
  if (!target_usable(target)) return false;
  chosen.store(target, std::memory_order_relaxed);
  return true;
}

const char* simd_targets() {
  static const std::string kNames = list_targets();
  return kNames.c_str();
}

const char* simd_chosen() { return target_name(chosen_target()); }

}  // namespace aliquot::kernels
