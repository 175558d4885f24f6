// The refusal of a plan that does not fit, with the cheapest ways to fit.
#include <algorithm>

#include "engine/plan.h"

namespace aliquot::engine {

namespace {

std::string mib(int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

struct Alternative {
  std::string what;
  alq_plan_desc desc;
  int64_t bytes = 0, traffic = 0;
};

// A plan of the same model with another description, built anew: its bundles
// may be cut for other axes.
Result<Plan> planned_otherwise(const PlanInputs& in,
                               const alq_plan_desc& desc) {
  Model model = *in.model;
  PlanInputs other = in;
  other.model = &model;
  ALQ_ASSIGN(DataAxes axes, data_axes(in, desc));
  ALQ_TRY(model.build_bundles(axes.shards, axes.replicas));
  return make_plan(other, desc);
}

// Plans that fit under the cap, least traffic first.
class Alternatives {
 public:
  Alternatives(const PlanInputs& in, const Plan& plan) : in_(in), plan_(plan) {}

  template <typename Change>
  void add(std::string what, Change change) {
    Alternative a{std::move(what), plan_.desc};
    change(a.desc);
    a.desc.cap_bytes = 0;
    Result<Plan> made = planned_otherwise(in_, a.desc);
    if (!made.ok() || made->total_bytes() > plan_.desc.cap_bytes) return;
    a.bytes = made->total_bytes();
    a.traffic = made->gather_bytes + made->reduce_bytes;
    found_.push_back(std::move(a));
  }

  std::string text(size_t most) {
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Alternative& a, const Alternative& b) {
                       return a.traffic < b.traffic;
                     });
    std::string out;
    for (size_t i = 0; i < found_.size() && i < most; ++i) {
      out += fmt::format("{} {} ({}, {} received per step)", i == 0 ? "" : ";",
                         found_[i].what, mib(found_[i].bytes),
                         mib(found_[i].traffic));
    }
    return out;
  }

 private:
  const PlanInputs& in_;
  const Plan& plan_;
  std::vector<Alternative> found_;
};

void use_strategy(int32_t strategy, alq_plan_desc* d) {
  d->strategy = strategy;
  d->param_axes = d->grad_axes = d->state_axes = 0;
}

void add_strategies(int32_t current, Alternatives* ways) {
  for (int32_t s : {ALQ_STRATEGY_ZERO1, ALQ_STRATEGY_ZERO2, ALQ_STRATEGY_HSDP,
                    ALQ_STRATEGY_FSDP}) {
    if (s == current) continue;
    ways->add(fmt::format("strategy {}", strategy_name(s)),
              [s](alq_plan_desc& d) {
                use_strategy(s, &d);
                d.defer = ALQ_DEFER_DEFAULT;
              });
    ways->add(fmt::format("strategy {} with prefetch none", strategy_name(s)),
              [s](alq_plan_desc& d) {
                use_strategy(s, &d);
                d.prefetch = -1;
                d.defer = ALQ_DEFER_EACH;
              });
  }
}

}  // namespace

Status over_cap(const PlanInputs& in, const Plan& plan) {
  Alternatives ways(in, plan);
  ways.add("prefetch none", [](alq_plan_desc& d) { d.prefetch = -1; });
  ways.add("gather MAP", [](alq_plan_desc& d) { d.gather = ALQ_GATHER_MAP; });
  ways.add("reduce in each microbatch",
           [](alq_plan_desc& d) { d.defer = ALQ_DEFER_EACH; });
  if (in.dp_shard > 1 && in.dp_replicate > 1) {
    ways.add("strategy custom, states over both data axes",
             [](alq_plan_desc& d) {
               d.strategy = ALQ_STRATEGY_CUSTOM;
               d.param_axes = d.grad_axes = ALQ_AXIS_DP_SHARD;
               d.state_axes = ALQ_AXIS_DP_SHARD | ALQ_AXIS_DP_REPLICATE;
             });
  }
  add_strategies(plan.desc.strategy, &ways);
  std::string fits = ways.text(3);
  return make_error(ALQ_RESOURCE_EXHAUSTED,
                    "the plan needs {} B per rank ({}), the cap is {} B.{}{}",
                    plan.total_bytes(), mib(plan.total_bytes()),
                    plan.desc.cap_bytes,
                    fits.empty() ? " No other placement on this mesh fits: use "
                                   "more ranks or a smaller model"
                                 : " These fit:",
                    fits);
}

}  // namespace aliquot::engine
