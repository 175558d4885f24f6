// Element types: sizes, names, classes.
#pragma once

#include <cstdint>

#include "aliquot/aliquot.h"

namespace aliquot {

using Dtype = alq_dtype;

constexpr int64_t dtype_size(Dtype dtype) {
  switch (dtype) {
    case ALQ_F64:
    case ALQ_I64:
    case ALQ_U64: return 8;
    case ALQ_F32:
    case ALQ_I32:
    case ALQ_U32: return 4;
    case ALQ_F16:
    case ALQ_BF16:
    case ALQ_I16:
    case ALQ_U16: return 2;
    case ALQ_I8:
    case ALQ_U8:
    case ALQ_BOOL:
    case ALQ_F8E4M3:
    case ALQ_F8E5M2: return 1;
    default: return 0;
  }
}

constexpr bool is_float(Dtype dtype) {  // with arithmetic
  return dtype >= ALQ_F64 && dtype <= ALQ_BF16;
}

constexpr bool is_integer(Dtype dtype) {
  return dtype >= ALQ_I8 && dtype <= ALQ_U64;
}

// The dtype sums are formed in: f32 for half types, else the dtype itself.
constexpr Dtype accumulate_dtype(Dtype dtype) {
  return dtype == ALQ_F16 || dtype == ALQ_BF16 ? ALQ_F32 : dtype;
}

const char* dtype_name(Dtype dtype);

}  // namespace aliquot
