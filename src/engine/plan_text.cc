// A plan for people (text) and programs (JSON), and the refusal of one that
// does not fit.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/plan.h"

namespace aliquot::engine {

namespace {

std::string mib(int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

const char* gather_name(const Plan& plan) {
  if (plan.map) return "map";
  bool gathers = std::any_of(plan.bundles.begin(), plan.bundles.end(),
                             [](const BundlePlan& b) { return b.gathers; });
  return gathers ? "copy" : "none";
}

struct Alternative {
  std::string what;
  alq_plan_desc desc;
  int64_t bytes = 0, traffic = 0;
};

}  // namespace

std::string plan_text(const Plan& plan, const Model& model) {
  std::string out = fmt::format(
      "strategy {}, {} shards x {} replicas, {} microbatches per step\n"
      "gather {}, prefetch {}, reduce in {} microbatch\n"
      "{} units, {} parameters, {} bundles\n",
      strategy_name(plan.desc.strategy), plan.axes.shards, plan.axes.replicas,
      plan.microbatches, gather_name(plan), plan.prefetch,
      plan.defer ? "the last" : "each", model.units.size(), model.params.size(),
      model.bundles.size());
  for (size_t i = 0; i < static_cast<size_t>(Owner::kCount); ++i) {
    if (plan.by_owner[i] == 0) continue;
    out += fmt::format("  {:<12}{:>16} B\n", owner_name(static_cast<Owner>(i)),
                       plan.by_owner[i]);
  }
  if (plan.map) {
    out += fmt::format("  {:<12}{:>16} B (1/{} of {} B mapped by all)\n",
                       "common", plan.total_bytes() - plan.arena_bytes,
                       plan.axes.shards, plan.common_bytes);
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
  j["defer"] = plan.defer;
  j["total_bytes"] = plan.total_bytes();
  j["arena_bytes"] = plan.arena_bytes;
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
    bundle["gathers"] = plan.bundles[b].gathers;
    for (const SegmentPlan& p : plan.bundles[b].segments) {
      bundle["segments"].push_back({{"dtype", dtype_name(p.dtype)},
                                    {"count", p.count},
                                    {"begin", p.begin},
                                    {"own", p.own},
                                    {"trainable", p.grad_dtype != 0}});
    }
    j["bundles"].push_back(std::move(bundle));
  }
  return j.dump(2);
}

Status over_cap(const PlanInputs& in, const Plan& plan) {
  std::vector<Alternative> alternatives;
  auto add = [&](std::string what, auto change) {
    Alternative a{std::move(what), plan.desc};
    change(a.desc);
    a.desc.cap_bytes = 0;
    Result<Plan> made = make_plan(in, a.desc);
    if (!made.ok() || made->total_bytes() > plan.desc.cap_bytes) return;
    a.bytes = made->total_bytes();
    a.traffic = made->gather_bytes + made->reduce_bytes;
    alternatives.push_back(std::move(a));
  };
  add("prefetch none", [](alq_plan_desc& d) { d.prefetch = -1; });
  add("gather MAP", [](alq_plan_desc& d) { d.gather = ALQ_GATHER_MAP; });
  add("reduce in each microbatch",
      [](alq_plan_desc& d) { d.defer = ALQ_DEFER_EACH; });
  for (int32_t s : {ALQ_STRATEGY_ZERO1, ALQ_STRATEGY_ZERO2, ALQ_STRATEGY_HSDP,
                    ALQ_STRATEGY_FSDP}) {
    if (s == plan.desc.strategy) continue;
    add(fmt::format("strategy {}", strategy_name(s)), [s](alq_plan_desc& d) {
      d.strategy = s;
      d.defer = ALQ_DEFER_DEFAULT;
    });
    add(fmt::format("strategy {} with prefetch none", strategy_name(s)),
        [s](alq_plan_desc& d) {
          d.strategy = s;
          d.prefetch = -1;
          d.defer = ALQ_DEFER_EACH;
        });
  }
  std::stable_sort(alternatives.begin(), alternatives.end(),
                   [](const Alternative& a, const Alternative& b) {
                     return a.traffic < b.traffic;
                   });
  std::string ways;
  for (size_t i = 0; i < alternatives.size() && i < 3; ++i) {
    ways += fmt::format("{} {} ({}, {} received per step)", i == 0 ? "" : ";",
                        alternatives[i].what, mib(alternatives[i].bytes),
                        mib(alternatives[i].traffic));
  }
  return make_error(ALQ_RESOURCE_EXHAUSTED,
                    "the plan needs {} B per rank ({}), the cap is {} B.{}{}",
                    plan.total_bytes(), mib(plan.total_bytes()),
                    plan.desc.cap_bytes,
                    ways.empty() ? " No other placement on this mesh fits: use "
                                   "more ranks or a smaller model"
                                 : " These fit:",
                    ways);
}

}  // namespace aliquot::engine
