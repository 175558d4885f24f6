// A small model and its plan, for tests of plans.
#pragma once

#include <string>
#include <vector>

#include "engine/plan.h"

namespace aliquot::engine {

struct Setup {
  Model model;
  EngineConfig config;
  std::vector<Optimizer> optimizers = std::vector<Optimizer>(1);
};

inline alq_optimizer_desc adamw() {
  alq_optimizer_desc d = {};
  d.kind = ALQ_OPTIM_ADAMW;
  d.beta1 = 0.9;
  d.beta2 = 0.95;
  d.eps = 1e-8;
  return d;
}

// `units` units of one trainable parameter of `count` elements.
inline Setup uniform(int32_t units, int64_t count, Dtype dtype) {
  Setup s;
  s.optimizers[0].desc = adamw();
  for (int32_t u = 0; u < units; ++u) {
    Param p;
    p.name = "p" + std::to_string(u);
    p.shape = {count};
    p.count = count;
    p.dtype = dtype;
    p.trainable = true;
    p.units = {u};
    s.model.params.push_back(p);
    s.model.units.push_back({"u" + std::to_string(u), {u}, false, {}});
  }
  return s;
}

// Of the rank that is first on both axes.
inline Result<Plan> plan(Setup& s, int32_t shard, int32_t replicate,
                         alq_plan_desc desc, bool host_shared = false) {
  PlanInputs in{&s.model, &s.config, &s.optimizers, shard, replicate,
                0,        0,         host_shared};
  Result<DataAxes> axes = data_axes(in, desc);
  if (!axes.ok()) return axes.status();
  Status built = s.model.build_bundles(axes->shards, axes->replicas);
  if (!built.ok()) return built;
  return make_plan(in, desc);
}

inline alq_plan_desc strategy(int32_t which) {
  alq_plan_desc d = {};
  d.strategy = which;
  return d;
}

inline int64_t owned_by(const Plan& plan, Owner owner) {
  return plan.by_owner[static_cast<size_t>(owner)];
}

}  // namespace aliquot::engine
