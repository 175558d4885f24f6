// A plan for people (text) and programs (JSON).
#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/plan.h"

namespace aliquot::engine {

namespace {

std::string mib(int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

template <typename Holds>
bool any(const Plan& plan, Holds holds) {
  return std::any_of(plan.bundles.begin(), plan.bundles.end(), holds);
}

const char* gather_name(const BundlePlan& b) {
  return b.map ? "map" : b.gathers ? "copy" : "none";
}

const char* gather_name(const Plan& plan) {
  bool maps = plan.maps();
  bool copies =
      any(plan, [](const BundlePlan& b) { return b.gathers && !b.map; });
  return maps && copies ? "map and copy"
         : maps         ? "map"
         : copies       ? "copy"
                        : "none";
}

const char* defer_name(const Plan& plan) {
  bool last = any(plan, [](const BundlePlan& b) { return b.defer; });
  bool each = any(plan, [](const BundlePlan& b) { return !b.defer; });
  return last && each ? "each or the last" : each ? "each" : "the last";
}

// How a bundle is placed, in one line.
std::string placement_text(const Placement& p) {
  return fmt::format("parameters {}, gradients {}, states {}",
                     extent_name(p.params), extent_name(p.grads),
                     extent_name(p.states));
}

// One line per bundle that is not placed as usual.
std::string unusual_text(const Plan& plan, const Model& model) {
  std::string out;
  for (size_t b = 0; b < plan.bundles.size(); ++b) {
    const Placement& placement = plan.bundles[b].placement;
    if (placement == plan.placement.usual) continue;
    out += fmt::format("  unit {}: {}\n", model.bundles[b].name,
                       placement_text(placement));
  }
  return out;
}

}  // namespace

std::string plan_text(const Plan& plan, const Model& model) {
  std::string out = fmt::format(
      "strategy {}, {} shards x {} replicas, {} microbatches per step\n"
      "{}\n"
      "gather {}, prefetch {}, reduce in {} microbatch\n"
      "{} units, {} parameters, {} bundles\n",
      strategy_name(plan.desc.strategy), plan.axes.shards, plan.axes.replicas,
      plan.microbatches, placement_text(plan.placement.usual),
      gather_name(plan), plan.prefetch, defer_name(plan), model.units.size(),
      model.params.size(), model.bundles.size());
  out += unusual_text(plan, model);
  for (size_t i = 0; i < static_cast<size_t>(Owner::kCount); ++i) {
    if (plan.by_owner[i] == 0) continue;
    out += fmt::format("  {:<12}{:>16} B\n", owner_name(static_cast<Owner>(i)),
                       plan.by_owner[i]);
  }
  if (plan.common_bytes > 0) {
    out += fmt::format(
        "  {:<12}{:>16} B of that (1/{} of {} B mapped by all)\n", "common",
        plan.common_share(), plan.axes.shards, plan.common_bytes);
  }
  out += fmt::format("  {:<12}{:>16} B ({})\n", "peak", plan.total_bytes(),
                     mib(plan.total_bytes()));
  out += fmt::format("received per step: {} B gathered, {} B reduced\n",
                     plan.gather_bytes, plan.reduce_bytes);
  return out;
}

std::string plan_json(const Plan& plan, const Model& model) {
  nlohmann::ordered_json j;
  j["strategy"] = strategy_name(plan.desc.strategy);
  j["shards"] = plan.axes.shards;
  j["replicas"] = plan.axes.replicas;
  j["microbatches"] = plan.microbatches;
  j["prefetch"] = plan.prefetch;
  j["max_open"] = plan.max_open;
  j["gather"] = gather_name(plan);
  j["reduce"] = defer_name(plan);
  j["total_bytes"] = plan.total_bytes();
  j["arena_bytes"] = plan.arena_bytes;
  j["open_bytes"] = plan.open_bytes;
  j["common_bytes"] = plan.common_bytes;
  for (size_t i = 0; i < static_cast<size_t>(Owner::kCount); ++i) {
    j["bytes"][owner_name(static_cast<Owner>(i))] = plan.by_owner[i];
  }
  j["gather_bytes_per_step"] = plan.gather_bytes;
  j["reduce_bytes_per_step"] = plan.reduce_bytes;
  for (size_t b = 0; b < plan.bundles.size(); ++b) {
    nlohmann::ordered_json bundle;
    bundle["name"] = model.bundles[b].name;
    bundle["slot"] = plan.bundles[b].slot;
    bundle["grad_slot"] = plan.bundles[b].grad_slot;
    bundle["gather"] = gather_name(plan.bundles[b]);
    bundle["defer"] = plan.bundles[b].defer;
    const Placement& placement = plan.bundles[b].placement;
    bundle["placement"] = {{"parameters", extent_name(placement.params)},
                           {"gradients", extent_name(placement.grads)},
                           {"states", extent_name(placement.states)}};
    for (const SegmentPlan& p : plan.bundles[b].segments) {
      bundle["segments"].push_back({{"dtype", dtype_name(p.dtype)},
                                    {"count", p.count},
                                    {"begin", p.own.begin},
                                    {"own", p.own.count},
                                    {"trainable", p.grad_dtype != 0}});
    }
    j["bundles"].push_back(std::move(bundle));
  }
  return j.dump(2);
}

}  // namespace aliquot::engine
