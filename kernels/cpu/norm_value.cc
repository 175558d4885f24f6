// The host's functions of arithmetic/norm_value.h.
#include "kernels/arithmetic/norm_value.h"

namespace aliquot::kernels {

void norm_merge(NormBins* into, const NormBins& from) {
  bins_merge(into, from);
}

double norm_value(const NormBins& bins) { return bins_value(bins); }

double norm_root(const NormBins& bins) { return bins_root(bins); }

}  // namespace aliquot::kernels
