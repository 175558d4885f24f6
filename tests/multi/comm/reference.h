// Sequential references: the canonical sum by the definition, one element at a
// time in plain C++, independent of the library's kernels.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "comm/group.h"

namespace aliquot::test {

using Buffer = std::vector<std::byte>;

// Element i of rank r: differs between ranks and elements, exact in no sum.
void fill(std::byte* data, Dtype dtype, int64_t count, int32_t rank,
          int64_t salt = 0);
Buffer filled(Dtype dtype, int64_t count, int32_t rank, int64_t salt = 0);

// The canonical reduction of the ranks' buffers.  add: on top of `onto`.
Buffer reduced(const std::vector<Buffer>& srcs, Dtype in, Dtype out,
               alq_reduce_op op, const Buffer* onto = nullptr);

// "" when equal, else where they differ.
std::string difference(const std::byte* got, const Buffer& want);

inline Buffer slice(const Buffer& whole, Dtype dtype, int64_t begin,
                    int64_t count) {
  auto at = whole.begin() + begin * dtype_size(dtype);
  return Buffer(at, at + count * dtype_size(dtype));
}

}  // namespace aliquot::test
