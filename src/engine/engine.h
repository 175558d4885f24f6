// Engine: the calls of the ABI's engine section, checked and carried out.  It
// owns the model, the plan, the core and the executor.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "engine/call_log.h"
#include "engine/executor.h"
#include "mesh/mesh.h"

namespace aliquot::engine {

// Data axes' sizes and this rank's place on them.
struct DataPlace {
  int32_t dp_shard = 1, dp_replicate = 1;
  int32_t shard_index = 0, replica_index = 0;
};

class Engine {
 public:
  Engine(std::shared_ptr<Context> context, std::shared_ptr<Device> device,
         std::shared_ptr<Mesh> mesh, std::string name, EngineConfig config);

  // Building (before plan).
  Result<int32_t> param_add(Param param);
  Result<int32_t> unit_add(Unit unit);
  Status unit_place(int64_t unit, const AxisMasks& masks);
  Status optimizer_set(int32_t group, const alq_optimizer_desc& desc);

  // Planning.
  Status plan(const alq_plan_desc& desc);
  const Plan* current_plan() const { return planned_ ? &plan_ : nullptr; }
  const Model& model() const { return model_; }
  Status commit(void* slab);

  // Another plan (replan.cc): a second engine, planned; when it is committed by
  // take_over it has this one's values and steps.
  bool committed() const { return committed_; }
  Result<std::shared_ptr<Engine>> replanned(const alq_plan_desc& desc);
  Status take_over(Engine& old, void* slab);

  // Parameters (param_io.cc).
  Status param_write(int32_t param, int32_t what, const void* data,
                     int64_t begin, int64_t count, Dtype dtype);
  Status param_read(int32_t param, int32_t what, void* data, int64_t begin,
                    int64_t count, Dtype dtype);
  Status shard_view(int32_t param, int32_t what, alq_shard* out);
  Status param_touch();

  // Running (run.cc).
  Status microbatch_begin(int32_t mode, double weight, bool last,
                          double* grad_scale);
  Status unit_begin(int32_t unit, int32_t pass, Stream* stream,
                    alq_unit_view* view);
  Status unit_end(int32_t unit, int32_t pass, Stream* stream);
  Status grad_ready(int32_t param, Stream* stream);
  Status grad_push(int32_t param, const alq_tensor& grad, Stream* stream);
  Status microbatch_end(Stream* stream);
  Status unit_hold(int64_t unit);
  Status unit_unhold(int64_t unit);

  // step.cc
  Status step(const alq_step_desc& desc, Stream* stream,
              alq_step_report* report);

  // Steps taken before, elsewhere: for restored optimizer states.
  Status set_steps(int64_t steps);

  std::string report() const;
  // trace.cc
  Status trace_write(const std::string& dir, int32_t step);
  // abandon.cc
  Status abandon(Deadline deadline);
  // join.cc
  Status join(bool leaves, alq_join_report* report);
  Status close(Deadline deadline);
  // Before the last reference goes: operations in flight keep `self`.
  void retire(const std::shared_ptr<Engine>& self);
  Device* device() const { return device_.get(); }

 private:
  // A stored part of a parameter: where, which elements, in which dtype.
  struct Part {
    std::byte* data = nullptr;  // at element `begin` of the parameter
    int64_t begin = 0, count = 0;
    Dtype dtype = 0;
    Extent extent = Extent::kWhole;
    bool common = false;  // ranks that have it share this memory
  };
  // What ranks tell each other of their plans.
  struct PlanShare {
    uint64_t hash;
    int64_t bytes, cap;
  };
  struct UnitViewArrays {
    std::vector<void*> params, grads, no_grads;
    std::vector<int32_t> betas;
  };

  Deadline deadline() const { return context_->deadline(0); }
  Status make_groups();
  static const char* shard_axes_of(const Plan& plan);
  Status meet_leaving(Deadline deadline);
  Status renew_groups(Deadline deadline);
  Status compare_plans(std::vector<PlanShare>* shares);
  Status check_caps(const PlanInputs& in,
                    const std::vector<PlanShare>& shares) const;
  Status check_slab(const void* slab) const;
  Status between_steps(const char* call) const;
  Status check_apart(const void* slab, int64_t bytes) const;
  Status agree(const Status& mine) const;
  Status move_values(Engine& old, int32_t id, int32_t what, Dtype dtype);
  Status choose_progress();  // progress.cc
  Status need_committed(const char* call) const;
  Status check_unit(int64_t unit) const;
  Status check_param(int64_t param) const;
  Status explain(const CoreError& error, const char* call, int32_t unit,
                 int32_t pass) const;
  Status act(Stream* stream);
  Status touch();
  Status open_compute(int32_t unit, int32_t pass, Stream* stream);
  Status close_compute(int32_t unit, int32_t pass, Stream* stream);
  void fill_view(int32_t unit, int32_t pass, alq_unit_view* view);
  Status check_into(int32_t unit, void* const* into) const;
  Status copy_into(int32_t unit, Stream* stream, void* const* into);
  Status follow_capture(Stream* stream);

  // join.cc: what is called here, for ranks that follow, and following.
  Status record(const Call& call) {
    // Passes of held units are no rank's business.
    if (log_ == nullptr || following_ || core_->holding()) return {};
    return log_->record(call);
  }
  Status record(OtherCall call) {
    return record({CallKind::kOther, static_cast<int16_t>(call)});
  }
  Status follow(bool leaves, alq_join_report* report);
  Status check_next(const CallLog::Next& next) const;
  Status serve(const Call& call, int32_t author, alq_join_report* report);
  Status serve_step(int32_t author, alq_join_report* report);
  Status serve_read(const Call& call);
  std::string call_text(const Call& call) const;
  void abort_groups(const Status& reason);

  // param_io.cc
  Result<Part> part_of(int32_t param, int32_t what) const;
  Range overlap(const Param& param, const Range& range, int64_t begin,
                int64_t end) const;
  struct Scratch;
  Status collect(const Param& param, const Part& part, int64_t begin,
                 int64_t count, Scratch* scratch);
  Status read(int32_t param, const Part& part, std::byte* data, int64_t begin,
              int64_t count, Dtype dtype);
  Status read_chunk(int32_t param, const Part& part, void* data, int64_t begin,
                    int64_t count, Dtype dtype, Scratch* scratch);
  Status meet(const char* label);
  Status settle();
  Status copy(void* dst, const void* src, int64_t bytes);
  Status write_from_host(std::byte* dst, Dtype dst_dtype, const std::byte* src,
                         Dtype src_dtype, int64_t count);
  Status round_masters();
  Status write_own(const Param& param, int32_t what, const Part& part,
                   const void* data, const Range& range, Dtype dtype);

  // step.cc
  Status check_step(const alq_step_desc& desc) const;
  Status decide(const alq_step_desc& desc, Stream* stream);
  Status set_rates(const alq_step_desc& desc, Stream* stream);
  Status gather_shares(Stream* stream);
  Range counted(const SegmentPlan& p) const;
  Status local_norm(Stream* stream);
  Status step_now(const alq_step_desc& desc, Stream* stream,
                  alq_step_report* report);
  Status step_later(const alq_step_desc& desc, Stream* stream,
                    alq_step_report* report);
  Status apply(Stream* stream);
  Status outcome(const kernels::StepResult& result,
                 alq_step_report* report) const;
  Status catch_up();
  Status update(Stream* stream);
  Status update_segment(const SegmentPlan& p, const std::vector<Run>& runs,
                        Stream* stream);
  Status update_run(const SegmentPlan& p, const Run& run, Stream* stream);
  Status copy_to_peers(const SegmentPlan& p, const Range& part, Stream* stream);
  int32_t param_at(int64_t element) const;
  void clear_step();
  Status check_rates(const alq_step_desc& desc) const;
  Status record_step(const alq_step_desc& desc);
  uint64_t hash_call(const alq_step_desc& desc) const;
  template <typename Args>
  Status launch(Stream* stream, kernels::OpCode op, const Args& args) {
    return device_->launch(stream, op, &args, sizeof args);
  }

  std::shared_ptr<Context> context_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<Mesh> mesh_;
  const std::string name_;
  const EngineConfig config_;
  DataPlace place_;
  Model model_;
  std::unordered_set<std::string> param_names_;
  std::vector<Optimizer> optimizers_;
  Plan plan_;
  bool planned_ = false, committed_ = false, closed_ = false;
  DataGroups groups_;
  Progress progress_;
  std::unique_ptr<Memory> recorded_;  // the recorder's, if streams write it
  trace::Recorder recorder_;
  std::vector<int32_t> unit_names_;  // in the recorder
  // Open compute span per unit and pass, or null.
  std::vector<std::array<trace::Span*, ALQ_PASS_B + 1>> computing_;
  std::unique_ptr<Core> core_;
  std::unique_ptr<Executor> executor_;
  std::vector<UnitViewArrays> views_;
  std::unique_ptr<StepMemory> step_memory_;
  std::shared_ptr<Event> decided_;
  std::unique_ptr<CallLog> log_;
  bool following_ = false;  // in join: calls are those of other ranks

  // The running step.
  int32_t microbatch_ = 0;  // TRAIN microbatches begun
  bool last_ = false, training_ = false;
  double weight_sum_ = 0;
  // Taken; an asynchronous step counts until its outcome is known.
  int64_t steps_ = 0;
  bool outcome_unknown_ = false;
  int32_t replans_ = 0;
  bool reads_peers_ = false;  // passes do: some parameters are sharded
  bool gathered_since_sync_ = false;
  bool grads_exposed_ = false;  // since this step began: they may have changed
  uint64_t capture_ = 0;        // that the last unit began in
  bool dirty_ = false;          // written since the last meeting
};

}  // namespace aliquot::engine
