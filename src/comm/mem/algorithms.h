// The algorithms of the mem backend, one file each, and what they share.
#pragma once

#include "comm/mem/coll_op.h"
#include "comm/mem/staged.h"

namespace aliquot::mem {

extern const Algorithm kAllReduceAlgorithm;
extern const Algorithm kReduceScatterAlgorithm;
extern const Algorithm kAllGatherAlgorithm;
extern const Algorithm kBroadcastAlgorithm;
extern const Algorithm kAllToAllAlgorithm;
extern const Algorithm kAllToAllVAlgorithm;
extern const Algorithm kGatherAlgorithm;
extern const Algorithm kScatterAlgorithm;
extern const Algorithm kReduceAlgorithm;
extern const Algorithm kBarrierAlgorithm;

// to = the sum of elements [begin, begin + count) of the slots' payloads.
void reduce_payloads(CollOp& op, int64_t begin, int64_t count, std::byte* to);
// Sums own part's range in window w of all ranks; to: where own part begins.
void take_reduced_part(CollOp& op, const Staging& s, uint64_t w, std::byte* to);
// Bytes of the largest part of src.
int64_t largest_part(const CollOp& op);
// all_to_all_v: elements that q has for r, as q announced them.
int64_t sent_count(const CollOp& op, int32_t q, int32_t r);
// all_to_all_v: what others send to this rank is what it expects.
Status compare_pairs(const CollOp& op);
// A sum over one rank into its own place.
bool nothing_to_reduce(const CollOp& op, const std::byte* to);

}  // namespace aliquot::mem
