#include "comm/mem/stream_copy.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace aliquot::mem {

#if defined(__x86_64__)

namespace {

constexpr int64_t kLine = 64;

// Copies whole lines of an aligned destination.
using Lines = void (*)(std::byte* to, const std::byte* from, int64_t bytes);

void stream_sse2(std::byte* to, const std::byte* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 16) {
    _mm_stream_si128(
        reinterpret_cast<__m128i*>(to + i),
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
}

__attribute__((target("avx2"))) void stream_avx2(std::byte* to,
                                                 const std::byte* from,
                                                 int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 32) {
    _mm256_stream_si256(
        reinterpret_cast<__m256i*>(to + i),
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i)));
  }
}

__attribute__((target("avx2"))) void store_avx2(std::byte* to,
                                                const std::byte* from,
                                                int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kLine) {
    const auto* in = reinterpret_cast<const __m256i*>(from + i);
    auto* out = reinterpret_cast<__m256i*>(to + i);
    const __m256i low = _mm256_loadu_si256(in);
    const __m256i high = _mm256_loadu_si256(in + 1);
    _mm256_store_si256(out, low);
    _mm256_store_si256(out + 1, high);
  }
}

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

void copy_lines(void* to, const void* from, int64_t bytes, Lines lines) {
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  const auto past =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(out) % kLine);
  const int64_t lead = std::min(past == 0 ? 0 : kLine - past, bytes);
  const int64_t whole = (bytes - lead) / kLine * kLine;
  std::memcpy(out, in, static_cast<size_t>(lead));
  lines(out + lead, in + lead, whole);
  std::memcpy(out + lead + whole, in + lead + whole,
              static_cast<size_t>(bytes - lead - whole));
}

}  // namespace

void stream_copy(void* to, const void* from, int64_t bytes) {
  copy_lines(to, from, bytes, has_avx2() ? stream_avx2 : stream_sse2);
  _mm_sfence();
}

void block_copy(void* to, const void* from, int64_t bytes) {
  if (has_avx2()) return copy_lines(to, from, bytes, store_avx2);
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

#else

void stream_copy(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void block_copy(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

#endif

}  // namespace aliquot::mem
