// Sums in rank order, in the data's own type; half types are widened for each
// addition and rounded after it, as a machine without wider registers would.
#include <cmath>
#include <cstring>

#include "kernels/arithmetic/half.h"
#include "tests/doubles/nccl/comm.h"

namespace aliquot::nccl_double {
namespace {

using Half = kernels::F16;
using Brain = kernels::BF16;

template <typename T>
struct Wide {
  using Type = T;
  static T up(T x) { return x; }
  static T down(T x) { return x; }
};
template <>
struct Wide<Half> {
  using Type = float;
  static float up(Half x) { return kernels::f16_to_f32(x); }
  static Half down(float x) { return kernels::f32_to_f16(x); }
};
template <>
struct Wide<Brain> {
  using Type = float;
  static float up(Brain x) { return kernels::bf16_to_f32(x); }
  static Brain down(float x) { return kernels::f32_to_bf16(x); }
};

template <typename T>
T add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(
        static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
  } else {
    return a + b;
  }
}

template <typename T>
T pick(T a, T b, bool least) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
  }
  return (least ? b < a : a < b) ? b : a;
}

template <typename T>
void combine_as(std::byte* to, const std::byte* const* from, int ranks,
                uint64_t count, NcclOp op) {
  using W = Wide<T>;
  using V = typename W::Type;
  for (uint64_t i = 0; i < count; ++i) {
    T first;
    std::memcpy(&first, from[0] + i * sizeof(T), sizeof first);
    V sum = W::up(first);
    for (int q = 1; q < ranks; ++q) {
      T next;
      std::memcpy(&next, from[q] + i * sizeof(T), sizeof next);
      V value = W::up(next);
      if (op == kMin || op == kMax) {
        sum = pick<V>(sum, value, op == kMin);
      } else {
        sum = W::up(W::down(add<V>(sum, value)));
      }
    }
    if constexpr (std::is_floating_point_v<V>) {
      if (op == kAvg) sum = sum * (V{1} / static_cast<V>(ranks));
    }
    T out = W::down(sum);
    std::memcpy(to + i * sizeof(T), &out, sizeof out);
  }
}

template <typename T>
void scale_as(std::byte* data, uint64_t count, double factor) {
  using W = Wide<T>;
  using V = typename W::Type;
  for (uint64_t i = 0; i < count; ++i) {
    T x;
    std::memcpy(&x, data + i * sizeof(T), sizeof x);
    x = W::down(W::up(x) * static_cast<V>(factor));
    std::memcpy(data + i * sizeof(T), &x, sizeof x);
  }
}

}  // namespace

size_t type_size(NcclType type) {
  switch (type) {
    case kInt8:
    case kUint8: return 1;
    case kFloat16:
    case kBfloat16: return 2;
    case kInt32:
    case kUint32:
    case kFloat32: return 4;
    case kInt64:
    case kUint64:
    case kFloat64: return 8;
  }
  return 0;
}

void combine(std::byte* to, const std::byte* const* from, int n, uint64_t count,
             NcclType type, NcclOp op) {
  switch (type) {
    case kInt8: return combine_as<int8_t>(to, from, n, count, op);
    case kUint8: return combine_as<uint8_t>(to, from, n, count, op);
    case kInt32: return combine_as<int32_t>(to, from, n, count, op);
    case kUint32: return combine_as<uint32_t>(to, from, n, count, op);
    case kInt64: return combine_as<int64_t>(to, from, n, count, op);
    case kUint64: return combine_as<uint64_t>(to, from, n, count, op);
    case kFloat16: return combine_as<Half>(to, from, n, count, op);
    case kBfloat16: return combine_as<Brain>(to, from, n, count, op);
    case kFloat32: return combine_as<float>(to, from, n, count, op);
    case kFloat64: return combine_as<double>(to, from, n, count, op);
  }
}

void scale(std::byte* data, uint64_t count, NcclType type, double factor) {
  switch (type) {
    case kFloat16: return scale_as<Half>(data, count, factor);
    case kBfloat16: return scale_as<Brain>(data, count, factor);
    case kFloat32: return scale_as<float>(data, count, factor);
    case kFloat64: return scale_as<double>(data, count, factor);
    default: violation("a premultiplied sum of integers");
  }
}

}  // namespace aliquot::nccl_double
