// Initial weights and their hash, shard by shard: no rank ever holds a full
// tensor of its own.
#pragma once

#include <cstdint>

#include "engine.h"
#include "shape.h"

namespace gpt {

// Element i of parameter p is drawn from (seed, p, i) alone, so every layout
// starts with the same weights.  Each rank writes the range that it owns.
void init_weights(Engine& engine, const Layout& layout, uint64_t seed);

// A 64-bit hash over all weights as f64, in order.  Collective.
uint64_t hash_weights(Engine& engine, const Layout& layout);

}  // namespace gpt
