#include "comm/mem/stream_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace aliquot::mem {

#if defined(__SSE2__)

void stream_copy(void* to, const void* from, int64_t bytes) {
  constexpr int64_t kLine = 64;
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  const auto past =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(out) % kLine);
  const int64_t lead = std::min(past == 0 ? 0 : kLine - past, bytes);
  std::memcpy(out, in, static_cast<size_t>(lead));
  int64_t i = lead;
  for (; i + kLine <= bytes; i += kLine) {
    for (int64_t k = 0; k < kLine; k += 16) {
      _mm_stream_si128(
          reinterpret_cast<__m128i*>(out + i + k),
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i + k)));
    }
  }
  std::memcpy(out + i, in + i, static_cast<size_t>(bytes - i));
  _mm_sfence();
}

#else

void stream_copy(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

#endif

}  // namespace aliquot::mem
