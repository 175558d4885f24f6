// A core over U equal units of one parameter each, and its actions as text.
#pragma once

#include <string>
#include <vector>

#include "engine/core.h"

namespace aliquot::engine {

struct ShapeOptions {
  int32_t units = 3;
  int32_t slots = 2;
  int32_t prefetch = 1;
  bool gathers = true;
  std::vector<int32_t> frozen = {};  // units whose parameter is frozen
};

inline CoreShape shape_of(const ShapeOptions& o) {
  CoreShape shape;
  shape.prefetch = o.prefetch;
  shape.slots = o.gathers ? o.slots : o.units;
  shape.grad_slots = o.slots;
  for (int32_t u = 0; u < o.units; ++u) {
    CoreShape::Bundle bundle;
    bundle.units = {u};
    bundle.gathers = o.gathers;
    bundle.slot = u % shape.slots;
    bundle.grad_slot = u % shape.grad_slots;
    bool frozen = false;
    for (int32_t f : o.frozen) frozen = frozen || f == u;
    bundle.has_frozen = frozen;
    if (!frozen) bundle.trainable = {u};
    shape.bundles.push_back(bundle);
    shape.units.push_back({u});
    shape.param_bundle.push_back(frozen ? -1 : u);
  }
  return shape;
}

// "E0" evict, "G1" gather, "P1" prefetch, "W1" await, "O1" open gradients, "Z1"
// zero, "R1" reduce; clears the actions.
inline std::string spell(Core& core) {
  std::string out;
  for (const Action& a : core.actions()) {
    char letter = '?';
    switch (a.kind) {
      case ActionKind::kEvict: letter = 'E'; break;
      case ActionKind::kGather:
        letter = (a.arg & kGatherPrefetched) != 0 ? 'P' : 'G';
        break;
      case ActionKind::kAwait: letter = 'W'; break;
      case ActionKind::kOpenGrads: letter = 'O'; break;
      case ActionKind::kZeroGrad: letter = 'Z'; break;
      case ActionKind::kReduce: letter = 'R'; break;
    }
    if (!out.empty()) out += ' ';
    out += letter + std::to_string(a.bundle);
  }
  core.actions().clear();
  return out;
}

}  // namespace aliquot::engine
