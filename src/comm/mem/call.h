// What ranks compare before data moves.
#pragma once

#include <span>
#include <string>

#include "comm/mem/core.h"

namespace aliquot::mem {

// Fills the hash from the other fields and the counts.
void seal_call(Call* call, std::span<const int64_t> counts);

inline bool same_call(const Call& a, const Call& b) {
  return a.hash[0] == b.hash[0] && a.hash[1] == b.hash[1];
}

// "all_reduce(1024 x f32, sum)"
std::string call_text(const Call& call);

const char* op_name(alq_reduce_op op);

}  // namespace aliquot::mem
