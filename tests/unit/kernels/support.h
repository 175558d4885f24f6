// What the kernel tests share: data with every kind of hard value, buffers at
// chosen addresses, a loop over the SIMD targets of this machine.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/arithmetic/half.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/ops.h"

namespace aliquot::kernels {

inline constexpr Dtype kFloatDtypes[] = {ALQ_F64, ALQ_F32, ALQ_F16, ALQ_BF16};

template <typename T>
struct Type {
  using type = T;
};

// f(Type<T>()) with the C++ type of a dtype with arithmetic.
template <typename F>
void with_float(Dtype dtype, F f) {
  switch (dtype) {
    case ALQ_F64: return f(Type<double>());
    case ALQ_F32: return f(Type<float>());
    case ALQ_F16: return f(Type<F16>());
    default: return f(Type<BF16>());
  }
}

// f() once for each usable SIMD target; the choice is restored after.
template <typename F>
void for_each_target(F f) {
  const size_t before = chosen_target();
  for (size_t t = 0; t < kTargets; ++t) {
    if (!force_target(t)) continue;
    BOOST_TEST_CONTEXT("target " << target_name(t)) { f(); }
  }
  BOOST_REQUIRE(force_target(before));
}

// 0 to 70, then larger odd ones.
inline std::vector<int64_t> test_counts() {
  std::vector<int64_t> counts;
  for (int64_t i = 0; i <= 70; ++i) counts.push_back(i);
  counts.insert(counts.end(), {127, 513, 1025, 4099});
  return counts;
}

// `count` elements of T, `skew` bytes off an aligned address, with a guard
// before and behind them that must stay as it is.
template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t count, size_t skew = 0)
      : count_(static_cast<size_t>(count)),
        skew_(skew),
        bytes_(kGuard + kAlign + skew + count_ * sizeof(T) + kGuard, 0x5a) {}

  T* data() { return reinterpret_cast<T*>(start()); }
  T get(int64_t i) {
    T value;
    std::memcpy(&value, start() + static_cast<size_t>(i) * sizeof(T),
                sizeof(T));
    return value;
  }
  void set(int64_t i, T value) {
    std::memcpy(start() + static_cast<size_t>(i) * sizeof(T), &value,
                sizeof(T));
  }
  int64_t count() const { return static_cast<int64_t>(count_); }

  void copy_from(Buffer& other) {
    std::memcpy(start(), other.start(), count_ * sizeof(T));
  }
  bool guard_intact() {
    for (const unsigned char* p = bytes_.data(); p < start(); ++p) {
      if (*p != 0x5a) return false;
    }
    const unsigned char* end = start() + count_ * sizeof(T);
    for (size_t i = 0; i < kGuard; ++i) {
      if (end[i] != 0x5a) return false;
    }
    return true;
  }
  // Index of the first element that differs in any bit, or -1.
  int64_t first_difference(Buffer& other) {
    for (int64_t i = 0; i < count(); ++i) {
      if (std::memcmp(start() + static_cast<size_t>(i) * sizeof(T),
                      other.start() + static_cast<size_t>(i) * sizeof(T),
                      sizeof(T)) != 0) {
        return i;
      }
    }
    return -1;
  }

 private:
  static constexpr size_t kAlign = 64, kGuard = 64;

  unsigned char* start() {
    unsigned char* after = bytes_.data() + kGuard;
    const auto at = reinterpret_cast<uintptr_t>(after);
    const size_t pad = (kAlign - at % kAlign) % kAlign;
    return after + pad + skew_;
  }

  size_t count_, skew_;
  std::vector<unsigned char> bytes_;
};

// Bits as double: the values that conversions and sums find hard.
inline double hard_value(std::mt19937_64& rng) {
  static const double kValues[] = {
      0.0, -0.0, std::numeric_limits<double>::quiet_NaN(),
      std::numeric_limits<double>::infinity(),
      -std::numeric_limits<double>::infinity(), 0x1p-149, -0x1p-149, 0x1.8p-133,
      0x1p-133, 0x1p-24, 0x1.8p-25, 0x1p-25, 0x1.000002p-25, 0x1p-14,
      0x1.ffcp15, 65520.0, 65519.996, 65504.0,
      // Ties of bf16 and of f16, even and odd, and just beside.
      0x1.01p0, 0x1.03p0, 0x1.010002p0, 0x1.00fffep0, 0x1.002p0, 0x1.006p0,
      0x1.002002p0, 0x1.0100000000001p0, 0x1.00ffffffffffp0,
      0x1.0020000000001p0, 0x1.fffffep127, 0x1.ffp127, 0x1p128, -0x1.fep127,
      0x1p-1074, 0x1.fffffffffffffp1023, 0x1.0000010000001p-130};
  const size_t n = sizeof(kValues) / sizeof(kValues[0]);
  return kValues[rng() % n];
}

// A quarter hard values, a quarter raw bits, the rest ordinary.
template <typename T>
T random_element(std::mt19937_64& rng) {
  const uint64_t kind = rng() % 4;
  const uint64_t raw = rng();
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(kind == 0 ? raw % 3 : raw);
  } else {
    if (kind == 0) return convert<T>(hard_value(rng));
    if (kind == 1) {
      T value;
      std::memcpy(&value, &raw, sizeof(T));
      return value;
    }
    const double unit = static_cast<double>(raw >> 11) * 0x1p-53;
    return convert<T>((unit - 0.5) * 8);
  }
}

template <typename T>
void fill_random(Buffer<T>& buffer, uint64_t seed) {
  std::mt19937_64 rng(seed);
  for (int64_t i = 0; i < buffer.count(); ++i) {
    buffer.set(i, random_element<T>(rng));
  }
}

// Finite, of moderate size, in any float type.
template <typename T>
void fill_moderate(Buffer<T>& buffer, uint64_t seed, double low, double high) {
  std::mt19937_64 rng(seed);
  std::uniform_real_distribution<double> distribution(low, high);
  for (int64_t i = 0; i < buffer.count(); ++i) {
    buffer.set(i, convert<T>(distribution(rng)));
  }
}

template <typename T>
double as_double(T x) {
  return convert<double>(x);
}

}  // namespace aliquot::kernels
