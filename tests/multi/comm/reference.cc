#include "multi/comm/reference.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace aliquot::test {
namespace {

float from_bf16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

uint16_t to_bf16(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  bits += 0x7fff + ((bits >> 16) & 1);
  return static_cast<uint16_t>(bits >> 16);
}

float from_f16(uint16_t bits) {
  return static_cast<float>(std::bit_cast<_Float16>(bits));
}

uint16_t to_f16(float value) {
  return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
}

template <typename T>
T get(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + i * int64_t{sizeof(T)}, sizeof value);
  return value;
}

template <typename T>
void put(std::byte* data, int64_t i, T value) {
  std::memcpy(data + i * int64_t{sizeof(T)}, &value, sizeof value);
}

float load_float(const std::byte* data, Dtype dtype, int64_t i) {
  if (dtype == ALQ_F32) return get<float>(data, i);
  auto bits = get<uint16_t>(data, i);
  return dtype == ALQ_F16 ? from_f16(bits) : from_bf16(bits);
}

void store_float(std::byte* data, Dtype dtype, int64_t i, float value) {
  if (dtype == ALQ_F32) return put(data, i, value);
  put(data, i, dtype == ALQ_F16 ? to_f16(value) : to_bf16(value));
}

template <typename T, typename Load>
T combine(const std::vector<Buffer>& srcs, alq_reduce_op op, Load load) {
  T sum = load(srcs[0]);
  for (size_t k = 1; k < srcs.size(); ++k) {
    T next = load(srcs[k]);
    if (op == ALQ_MIN) sum = next < sum ? next : sum;
    if (op == ALQ_MAX) sum = next > sum ? next : sum;
    if (op == ALQ_SUM || op == ALQ_AVG) sum = static_cast<T>(sum + next);
  }
  if (op == ALQ_AVG) {
    sum = static_cast<T>(
        sum * static_cast<T>(1.0 / static_cast<double>(srcs.size())));
  }
  return sum;
}

// Wrapping sums are formed unsigned.
template <typename T>
void reduce_integers(const std::vector<Buffer>& srcs, alq_reduce_op op,
                     const Buffer* onto, Buffer* out) {
  using U = std::make_unsigned_t<T>;
  auto count = static_cast<int64_t>(out->size() / sizeof(T));
  for (int64_t i = 0; i < count; ++i) {
    U value;
    if (op == ALQ_SUM) {
      value = combine<U>(srcs, op,
                         [&](const Buffer& b) { return get<U>(b.data(), i); });
    } else {
      value = static_cast<U>(combine<T>(
          srcs, op, [&](const Buffer& b) { return get<T>(b.data(), i); }));
    }
    if (onto) value = static_cast<U>(value + get<U>(onto->data(), i));
    put(out->data(), i, value);
  }
}

}  // namespace

void fill(std::byte* data, Dtype dtype, int64_t count, int32_t rank,
          int64_t salt) {
  for (int64_t i = 0; i < count; ++i) {
    auto x = static_cast<uint64_t>(i * 2654435761 + rank * 40503 + salt * 977);
    x ^= x >> 13;
    x *= 0x9e3779b97f4a7c15;
    x ^= x >> 29;
    double real = (static_cast<double>(x % 200003) - 100001.0) / 7919.0;
    if (dtype == ALQ_F64) {
      put(data, i, real);
    } else if (is_float(dtype)) {
      store_float(data, dtype, i, static_cast<float>(real));
    } else {
      auto size = static_cast<size_t>(dtype_size(dtype));
      std::memcpy(data + i * static_cast<int64_t>(size), &x, size);
    }
  }
}

Buffer filled(Dtype dtype, int64_t count, int32_t rank, int64_t salt) {
  Buffer buffer(static_cast<size_t>(count * dtype_size(dtype)));
  fill(buffer.data(), dtype, count, rank, salt);
  return buffer;
}

Buffer reduced(const std::vector<Buffer>& srcs, Dtype in, Dtype out,
               alq_reduce_op op, const Buffer* onto) {
  auto count = static_cast<int64_t>(srcs[0].size()) / dtype_size(in);
  Buffer result(static_cast<size_t>(count * dtype_size(out)));
  if (in == ALQ_F64) {
    for (int64_t i = 0; i < count; ++i) {
      auto value = combine<double>(
          srcs, op, [&](const Buffer& b) { return get<double>(b.data(), i); });
      if (onto) value = get<double>(onto->data(), i) + value;
      put(result.data(), i, value);
    }
    return result;
  }
  if (is_float(in)) {
    for (int64_t i = 0; i < count; ++i) {
      auto value = combine<float>(srcs, op, [&](const Buffer& b) {
        return load_float(b.data(), in, i);
      });
      if (onto) value = load_float(onto->data(), out, i) + value;
      store_float(result.data(), out, i, value);
    }
    return result;
  }
  switch (in) {
    case ALQ_I8: reduce_integers<int8_t>(srcs, op, onto, &result); break;
    case ALQ_I16: reduce_integers<int16_t>(srcs, op, onto, &result); break;
    case ALQ_I32: reduce_integers<int32_t>(srcs, op, onto, &result); break;
    case ALQ_I64: reduce_integers<int64_t>(srcs, op, onto, &result); break;
    case ALQ_U8: reduce_integers<uint8_t>(srcs, op, onto, &result); break;
    case ALQ_U16: reduce_integers<uint16_t>(srcs, op, onto, &result); break;
    case ALQ_U32: reduce_integers<uint32_t>(srcs, op, onto, &result); break;
    default: reduce_integers<uint64_t>(srcs, op, onto, &result); break;
  }
  return result;
}

std::string difference(const std::byte* got, const Buffer& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (got[i] != want[i]) {
      return fmt::format("byte {} of {} is {:#x}, expected {:#x}", i,
                         want.size(), static_cast<int>(got[i]),
                         static_cast<int>(want[i]));
    }
  }
  return "";
}

}  // namespace aliquot::test
