// Counter-based random numbers: a value depends on (seed, stream, index) alone,
// so every layout draws the same samples and the same initial weights, and a
// rank can draw its part without drawing the rest.
// Source: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators
// (the finaliser of SplitMix64).
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace gpt {

inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

inline uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index) {
  return mix(mix(mix(seed) ^ stream) ^ index);
}

__extension__ using Wide = unsigned __int128;

// Uniform in [0, bound), bound >= 1.
inline uint64_t random_below(uint64_t bits, uint64_t bound) {
  return static_cast<uint64_t>((static_cast<Wide>(bits) * bound) >> 64);
}

// Standard normal.  Source: Box and Muller.
inline double random_normal(uint64_t bits) {
  const double u = (static_cast<double>(bits >> 32) + 0.5) * 0x1p-32;
  const double v = static_cast<double>(bits & 0xffffffffu) * 0x1p-32;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

}  // namespace gpt
