// What ranks compare of a collective call, before data moves or soon after.
#pragma once

#include <span>
#include <string>

#include "comm/group.h"

namespace aliquot {

// What is being called, in words that an error can repeat.  hash covers these
// fields and all counts.
struct Call {
  uint64_t hash[2];
  int32_t kind, dtype, out_dtype, op, root;
  int32_t flags;
  int64_t count;
};
constexpr int32_t kCallAccumulate = 1;
constexpr int32_t kCallPremul = 4;
constexpr int32_t kCallInternal = 2;  // part of a split or allocation

// Fills the hash from the other fields and the counts.
void seal_call(Call* call, std::span<const int64_t> counts);

inline bool same_call(const Call& a, const Call& b) {
  return a.hash[0] == b.hash[0] && a.hash[1] == b.hash[1];
}

// "all_reduce(1024 x f32, sum)"
std::string call_text(const Call& call);

// `, "unit"` or "".
std::string label_text(const char* label);

const char* op_name(alq_reduce_op op);

}  // namespace aliquot
