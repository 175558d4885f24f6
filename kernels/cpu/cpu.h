// The operations of ops.h on the CPU, one file each.
#pragma once

#include "kernels/ops.h"

namespace aliquot::kernels {

void fill_cpu(const FillArgs& args);
void copy_cpu(const CopyArgs& args);
// As copy_cpu, past the caches.  Other threads may be told of the bytes after
// flush_cold_cpu.  Must not overlap.
void copy_cold_cpu(const CopyArgs& args);
void flush_cold_cpu();
// As copy_cpu, at one speed for all alignments.  Must not overlap.
void copy_even_cpu(const CopyArgs& args);
void cast_cpu(const CastArgs& args);
void accumulate_cpu(const AccumulateArgs& args);
void adamw_cpu(const AdamWArgs& args);
void sgd_cpu(const SgdArgs& args);
void norm_cpu(const NormArgs& args);
void finite_cpu(const FiniteArgs& args);
void stamp_cpu(const StampArgs& args);

}  // namespace aliquot::kernels
