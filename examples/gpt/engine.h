// The model's parameters in the sharded engine: registers them and their units,
// plans and commits, and hands out unit views in every pass.  This is all that
// plugging a framework in takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host.h"
#include "options.h"
#include "session.h"
#include "shape.h"

namespace gpt {

class Engine final : public Host {
 public:
  Engine(Session& session, const Options& options, const Layout& layout,
         int64_t microbatches);

  UnitView begin(int64_t unit, Pass pass) override;
  void end(int64_t unit, Pass pass) override;
  void ready(int64_t unit, int64_t index) override;

  // Returns what the mean loss's gradient must be multiplied with.
  double begin_training(double weight, bool last);
  void begin_evaluation();
  void end_microbatch();
  alq_step_report step(double lr, const Options& options);

  int64_t planned_bytes() const { return plan_.total_bytes; }
  double exposed_seconds() const;  // of the last step
  // Whether the library helps gathers along while we compute, and why.
  std::string progress_text() const;
  alq_engine* handle() const { return engine_.get(); }
  int64_t param(size_t index) const { return params_[index]; }  // its id
  // Collective: the recorder's last steps of all ranks as files.
  void write_trace(const std::string& folder);
  void close();

 private:
  void add_params(const Layout& layout, int32_t dtype);
  void add_units(const Layout& layout, bool replicate_root);
  void set_optimizers();
  void plan(const Options& options, int64_t microbatches);

  Session& session_;
  Handle<alq_engine, alq_engine_release> engine_;
  std::vector<int64_t> params_;                    // ids
  std::vector<int64_t> units_;                     // ids
  std::vector<std::vector<int64_t>> unit_params_;  // ids per unit
  alq_plan_report plan_;
};

// Creates the folder that traces go to, or says why not.
void make_folder(const std::string& folder);

}  // namespace gpt
