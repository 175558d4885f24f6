// Which Highway targets are compiled; include before any hwy header.
// x86: SSE4, AVX2 and AVX3 (AVX-512 F, VL, DQ, BW) plus the build's baseline.
// Elsewhere: the baseline only.  Only Highway's headers are used: its run-time
// dispatch needs libhwy, ours (dispatch.h) does not.
#pragma once

#if defined(ALQ_ONE_SIMD_TARGET) && defined(__x86_64__)
// Sanitizer builds: all targets are the same source; AVX2 and the baseline are
// enough there, and compile in a third of the time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#define HWY_DISABLE_PCLMUL_AES
#elif defined(__x86_64__)
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
// Not used by any kernel, so not asked of the CPU.
#define HWY_DISABLE_PCLMUL_AES
#else
#define HWY_COMPILE_ONLY_STATIC
#endif
