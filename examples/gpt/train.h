// The training loop of one rank.
//
// Who computes what.  A step has global_batch samples, in microbatches 0, 1,
// ... of micro_batch samples each; microbatch g of step t holds the samples
//   t * global_batch + g * micro_batch + (0 ... micro_batch - 1).
// R replicas of S shards compute M = global_batch / (R * S * micro_batch) of
// them per rank.  Shard s of replica r computes, for j = 0 ... M - 1,
//   g = (r * S + s) * M + j   if gradients are reduced in the last microbatch,
//   g = (r * M + j) * S + s   if they are reduced in each.
// Either way one rank that runs all microbatches in order and declares the
// nesting of the sum, "RxSxM" or "RxMxS", adds the same numbers in the same
// order; levels of size 1 may be left out.
#pragma once

#include <memory>

#include "data.h"
#include "model.h"
#include "options.h"
#include "session.h"

namespace gpt {

// Everything of the command line that can be checked before a rank starts.
void check_options(const Options& options);

// Trains as the rank that the place says.  Throws Error.
void train(const Options& options, const Corpus& corpus, const Place& place);

}  // namespace gpt
