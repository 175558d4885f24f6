// Barrier: the arrival that every collective begins with, and nothing else.
// Cost: one flag per rank, P-1 flags read.  Also the table of algorithms.
#include "comm/mem/algorithms.h"

namespace aliquot::mem {
namespace {

Step nothing(CollOp&) { return Step::kDone; }

}  // namespace

const Algorithm kBarrierAlgorithm = {nothing, nothing, nothing};

const Algorithm& algorithm(CollKind kind) {
  switch (kind) {
    case CollKind::kAllReduce: return kAllReduceAlgorithm;
    case CollKind::kReduceScatter: return kReduceScatterAlgorithm;
    case CollKind::kAllGather: return kAllGatherAlgorithm;
    case CollKind::kBroadcast: return kBroadcastAlgorithm;
    case CollKind::kAllToAll: return kAllToAllAlgorithm;
    case CollKind::kAllToAllV: return kAllToAllVAlgorithm;
    case CollKind::kGather: return kGatherAlgorithm;
    case CollKind::kScatter: return kScatterAlgorithm;
    case CollKind::kReduce: return kReduceAlgorithm;
    default: return kBarrierAlgorithm;
  }
}

}  // namespace aliquot::mem
