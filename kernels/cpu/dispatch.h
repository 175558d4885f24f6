// Run-time choice of the SIMD target: once, by cpuid.  Internal to kernels/cpu
// and its tests.
#pragma once

#include <array>
#include <cstddef>

namespace aliquot::kernels {

// Best first.  kBaseline is what the build's own flags allow.
enum Target : size_t { kAvx3, kAvx2, kSse4, kBaseline, kTargets };

const char* target_name(size_t target);
bool target_compiled(size_t target);
// Compiled, and this CPU (and its system) can run it.
bool target_usable(size_t target);
size_t chosen_target();

// Tests only: uses `target` from now on.  False, and no change, when it cannot
// be used here.
bool force_target(size_t target);

// One entry per Target; null where not compiled.
template <typename Function>
using SimdTable = std::array<Function*, kTargets>;

// After foreach_target.h, where HWY_ONCE: the entries of function `fn`.
#define ALQ_SIMD_TABLE(fn)                                         \
  {                                                                \
    HWY_CHOOSE_AVX3(fn), HWY_CHOOSE_AVX2(fn), HWY_CHOOSE_SSE4(fn), \
        &HWY_STATIC_DISPATCH(fn)                                   \
  }

}  // namespace aliquot::kernels
