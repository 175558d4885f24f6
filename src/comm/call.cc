// 16 bytes of XXH3 (https://xxhash.com) stand for a call; the readable fields
// beside it are for the message.
#include "comm/call.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace aliquot {

const char* op_name(alq_reduce_op op) {
  switch (op) {
    case ALQ_SUM: return "sum";
    case ALQ_AVG: return "avg";
    case ALQ_MIN: return "min";
    case ALQ_MAX: return "max";
    default: return "unknown op";
  }
}

void seal_call(Call* call, std::span<const int64_t> counts) {
  constexpr size_t kSkip = sizeof call->hash;
  XXH64_hash_t seed = 0;
  if (!counts.empty()) seed = XXH3_64bits(counts.data(), counts.size_bytes());
  XXH128_hash_t hash = XXH3_128bits_withSeed(
      reinterpret_cast<const char*>(call) + kSkip, sizeof *call - kSkip, seed);
  call->hash[0] = hash.low64;
  call->hash[1] = hash.high64;
}

std::string call_text(const Call& call) {
  auto kind = static_cast<CollKind>(call.kind);
  if (kind == CollKind::kBarrier) return "barrier()";
  // The counts of all_to_all_v are compared pair by pair.
  if (kind == CollKind::kAllToAllV) {
    return fmt::format("all_to_all_v({})", dtype_name(call.dtype));
  }
  std::string text = fmt::format("{}({} x {}", coll_name(kind), call.count,
                                 dtype_name(call.dtype));
  if (is_reduction(kind)) {
    text += fmt::format(", {}", (call.flags & kCallPremul) != 0
                                    ? "premultiplied sum"
                                    : op_name(call.op));
    if (call.out_dtype != call.dtype) {
      text += fmt::format(" to {}", dtype_name(call.out_dtype));
    }
    if ((call.flags & kCallAccumulate) != 0) text += ", accumulate";
  }
  if (is_rooted(kind)) text += fmt::format(", root {}", call.root);
  if ((call.flags & kCallInternal) != 0) text += ", inside split or allocate";
  return text + ")";
}

std::string label_text(const char* label) {
  return *label == '\0' ? "" : fmt::format(", \"{}\"", label);
}

}  // namespace aliquot
