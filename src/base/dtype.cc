#include "base/dtype.h"

namespace aliquot {

const char* dtype_name(Dtype dtype) {
  static constexpr const char* kNames[] = {
      "?",   "f64", "f32", "f16", "bf16", "i8",   "i16",    "i32",
      "i64", "u8",  "u16", "u32", "u64",  "bool", "f8e4m3", "f8e5m2"};
  bool known = dtype > 0 && dtype <= ALQ_F8E5M2;
  return kNames[known ? dtype : 0];
}

}  // namespace aliquot
