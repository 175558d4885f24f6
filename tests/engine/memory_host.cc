// Trains a made-up model through the C ABI, as one rank of a world given by the
// environment, and tells what memory it saw the library take: one line of JSON.
//
//   memory_host STRATEGY GATHER MICROBATCHES STEPS     (numbers of aliquot.h)
//
// Runs under alloc_probe, which counts allocations while `in` is alive.
#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "aliquot/aliquot.h"

namespace {

constexpr int64_t kBlocks = 6, kDim = 192, kVocab = 700, kMatrices = 4;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "memory_host: %s\n", what);
  std::exit(1);
}

struct Probe {
  void (*inside)(int);
  void (*take)(long*, long*, long*);
};

Probe probe() {
  static const Probe found = [] {
    Probe p = {};
    void* inside = dlsym(RTLD_DEFAULT, "alloc_probe_inside");
    void* take = dlsym(RTLD_DEFAULT, "alloc_probe_take");
    if (inside == nullptr || take == nullptr) fail("alloc_probe is not loaded");
    std::memcpy(&p.inside, &inside, sizeof inside);
    std::memcpy(&p.take, &take, sizeof take);
    return p;
  }();
  return found;
}

// alq(alq_x, args...): calls alq_x with the probe on; ends on an error.
template <typename Function, typename... Args>
void alq(Function* function, Args... args) {
  alq_error error = {};
  error.struct_size = sizeof error;
  probe().inside(1);
  alq_status status = function(args..., &error);
  probe().inside(0);
  if (status != ALQ_OK) fail(error.message);
}

template <typename T>
T make() {
  T desc = {};
  desc.struct_size = sizeof desc;
  return desc;
}

// Memory of this process that is not backed by a file of its own name:
// anonymous and shared, each page divided by how many map it.
long resident_bytes() {
  FILE* file = std::fopen("/proc/self/smaps_rollup", "re");
  if (file == nullptr) fail("no /proc/self/smaps_rollup");
  char line[256];
  long total = 0, kib = 0;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "Pss_Anon: %ld", &kib) == 1 ||
        std::sscanf(line, "Pss_Shmem: %ld", &kib) == 1) {
      total += kib * 1024;
    }
  }
  std::fclose(file);
  return total;
}

struct Rank {
  alq_context* context = nullptr;
  alq_mesh* mesh = nullptr;
  alq_group* world = nullptr;
  alq_engine* engine = nullptr;
  std::vector<std::vector<int64_t>> units;  // parameters
  std::vector<int64_t> counts;              // elements of each parameter
  alq_plan_report plan = make<alq_plan_report>();

  void meet() {
    alq(alq_group_barrier, world, static_cast<const alq_stream*>(nullptr),
        static_cast<alq_work**>(nullptr));
  }
};

void open(Rank* rank) {
  auto desc = make<alq_open_desc>();
  desc.bootstrap = ALQ_BOOTSTRAP_ENV;
  desc.timeout_ns = 60'000'000'000;
  alq(alq_open, uint32_t{ALQ_ABI_VERSION},
      static_cast<const alq_open_desc*>(&desc), &rank->context);
  alq(alq_mesh_create, rank->context, "", &rank->mesh);
  alq(alq_group_world, rank->context, &rank->world);
}

int64_t add_param(Rank* rank, const char* name, int64_t rows) {
  const int64_t shape[] = {rows, kDim};
  auto desc = make<alq_param_desc>();
  desc.flags = ALQ_PARAM_TRAINABLE;
  desc.name = name;
  desc.shape = shape;
  desc.ndim = 2;
  desc.dtype = ALQ_F32;
  int64_t id = 0;
  alq(alq_param_add, rank->engine, static_cast<const alq_param_desc*>(&desc),
      &id);
  rank->counts.push_back(rows * kDim);
  return id;
}

void add_unit(Rank* rank, const char* name, std::vector<int64_t> params,
              uint32_t flags) {
  int64_t id = 0;
  alq(alq_unit_add, rank->engine, name,
      static_cast<const int64_t*>(params.data()),
      static_cast<int64_t>(params.size()), flags, &id);
  rank->units.push_back(std::move(params));
}

void build(Rank* rank, int32_t strategy, int32_t gather, int32_t microbatches) {
  auto desc = make<alq_engine_desc>();
  desc.poison = 1;
  alq(alq_engine_create, rank->mesh, static_cast<const alq_engine_desc*>(&desc),
      &rank->engine);
  add_unit(rank, "root", {add_param(rank, "embed", kVocab)}, ALQ_UNIT_ROOT);
  char name[64];
  for (int64_t b = 0; b < kBlocks; ++b) {
    std::vector<int64_t> params;
    for (int64_t m = 0; m < kMatrices; ++m) {
      std::snprintf(name, sizeof name, "block%d.%d", static_cast<int>(b),
                    static_cast<int>(m));
      params.push_back(add_param(rank, name, kDim + m));
    }
    std::snprintf(name, sizeof name, "block%d", static_cast<int>(b));
    add_unit(rank, name, std::move(params), 0);
  }
  auto adamw = make<alq_optimizer_desc>();
  adamw.kind = ALQ_OPTIM_ADAMW;
  adamw.beta1 = 0.9;
  adamw.beta2 = 0.95;
  adamw.eps = 1e-8;
  alq(alq_optimizer_set, rank->engine, 0,
      static_cast<const alq_optimizer_desc*>(&adamw));
  auto plan = make<alq_plan_desc>();
  plan.strategy = strategy;
  plan.gather = gather;
  plan.microbatches = microbatches;
  alq(alq_engine_plan, rank->engine, static_cast<const alq_plan_desc*>(&plan),
      &rank->plan);
  alq(alq_engine_commit, rank->engine, static_cast<void*>(nullptr));
}

void initialise(Rank* rank) {
  std::vector<float> row(static_cast<size_t>(kDim), 0.5F);
  for (size_t p = 0; p < rank->counts.size(); ++p) {
    for (int64_t at = 0; at < rank->counts[p]; at += kDim) {
      alq(alq_param_write, rank->engine, static_cast<int64_t>(p),
          int32_t{ALQ_VALUE}, static_cast<const void*>(row.data()), at, kDim,
          alq_dtype{ALQ_F32});
    }
  }
}

const alq_stream* const kNow = nullptr;

alq_unit_view begin(Rank* rank, int64_t unit, int32_t pass) {
  auto view = make<alq_unit_view>();
  alq(alq_unit_begin, rank->engine, unit, pass, kNow, &view);
  return view;
}

// The gradient is a function of the parameters, so a read of freed memory ends
// as a non-finite gradient, which the step reports.
void backward(Rank* rank, int64_t unit) {
  const alq_unit_view view = begin(rank, unit, ALQ_PASS_B);
  const std::vector<int64_t>& params = rank->units[static_cast<size_t>(unit)];
  for (size_t i = 0; i < params.size(); ++i) {
    const auto* w = static_cast<const float*>(view.params[i]);
    auto* g = static_cast<float*>(view.grads[i]);
    for (int64_t e = 0; e < rank->counts[static_cast<size_t>(params[i])]; ++e) {
      const float grad = w[e] - 0.25F;
      g[e] = view.betas[i] != 0 ? g[e] + grad : grad;
    }
    alq(alq_grad_ready, rank->engine, params[i], kNow);
  }
  alq(alq_unit_end, rank->engine, unit, int32_t{ALQ_PASS_B}, kNow);
}

void microbatch(Rank* rank, bool last) {
  double scale = 0;
  alq(alq_microbatch_begin, rank->engine, int32_t{ALQ_TRAIN}, 1.0,
      int32_t{last}, &scale);
  const auto units = static_cast<int64_t>(rank->units.size());
  for (int64_t u = 0; u < units; ++u) {
    begin(rank, u, ALQ_PASS_F);
    if (u > 0) {
      alq(alq_unit_end, rank->engine, u, int32_t{ALQ_PASS_F}, kNow);
    }
  }
  for (int64_t u = units; u-- > 0;) backward(rank, u);
  alq(alq_microbatch_end, rank->engine, kNow);
}

void step(Rank* rank, int32_t microbatches) {
  for (int32_t m = 0; m < microbatches; ++m) {
    microbatch(rank, m + 1 == microbatches);
  }
  const double lr = 0.01;
  auto desc = make<alq_step_desc>();
  desc.lr = &lr;
  desc.n_groups = 1;
  desc.clip_norm = 1;
  auto report = make<alq_step_report>();
  alq(alq_step, rank->engine, static_cast<const alq_step_desc*>(&desc), kNow,
      &report);
  if (report.skipped != 0) fail("a gradient is not finite");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) fail("usage: memory_host STRATEGY GATHER MICROBATCHES STEPS");
  const int32_t microbatches = std::atoi(argv[3]), steps = std::atoi(argv[4]);
  probe().inside(0);
  Rank rank;
  open(&rank);
  rank.meet();
  const long before = resident_bytes();
  rank.meet();

  long large = 0, all = 0, most = 0;
  probe().take(&large, &all, &most);
  build(&rank, std::atoi(argv[1]), std::atoi(argv[2]), microbatches);
  initialise(&rank);
  long setup_large = 0;
  probe().take(&setup_large, &all, &most);
  step(&rank, microbatches);
  probe().take(&large, &all, &most);
  for (int32_t s = 1; s < steps; ++s) step(&rank, microbatches);
  probe().take(&large, &all, &most);

  rank.meet();  // nobody's pages go away while another one counts
  const long after = resident_bytes();
  rank.meet();
  std::printf(
      "{\"plan\": %lld, \"states\": %lld, \"growth\": %ld, "
      "\"setup_large\": %ld, \"large\": %ld, \"largest\": %ld, "
      "\"small_per_step\": %.1f}\n",
      static_cast<long long>(rank.plan.total_bytes),
      static_cast<long long>(rank.plan.state_bytes), after - before,
      setup_large, large, most, static_cast<double>(all - large) / (steps - 1));
  alq(alq_engine_close, rank.engine, int64_t{0});
  alq_engine_release(rank.engine);
  alq_group_release(rank.world);
  alq_mesh_release(rank.mesh);
  alq(alq_close, rank.context, int64_t{0});
  alq_release(rank.context);
  return 0;
}
