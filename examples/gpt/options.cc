#include "options.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <map>

#include "aliquot/aliquot.h"

namespace gpt {
namespace {

using Names = std::map<std::string, int32_t>;

const Names kDtypes = {{"f64", ALQ_F64}, {"f32", ALQ_F32}, {"bf16", ALQ_BF16}};
const Names kDevices = {{"cpu", ALQ_DEVICE_CPU}, {"cuda", ALQ_DEVICE_CUDA}};
const Names kStrategies = {
    {"auto", ALQ_STRATEGY_DEFAULT}, {"single", ALQ_STRATEGY_SINGLE},
    {"ddp", ALQ_STRATEGY_DDP},      {"zero1", ALQ_STRATEGY_ZERO1},
    {"zero2", ALQ_STRATEGY_ZERO2},  {"fsdp", ALQ_STRATEGY_FSDP},
    {"hsdp", ALQ_STRATEGY_HSDP}};
const Names kGathers = {{"auto", ALQ_GATHER_AUTO},
                        {"copy", ALQ_GATHER_COPY},
                        {"map", ALQ_GATHER_MAP}};
const Names kAccumulates = {{"exact", ALQ_ACCUMULATE_EXACT},
                            {"fast", ALQ_ACCUMULATE_FAST}};
const Names kDefers = {{"auto", ALQ_DEFER_DEFAULT},
                       {"each", ALQ_DEFER_EACH},
                       {"last", ALQ_DEFER_LAST}};
const std::map<std::string, Progress> kProgress = {{"auto", Progress::kAuto},
                                                   {"bar", Progress::kBar},
                                                   {"lines", Progress::kLines},
                                                   {"none", Progress::kNone}};
const std::map<std::string, bool> kCheckpoints = {{"none", false},
                                                  {"block", true}};

template <class Map>
std::string keys(const Map& map) {
  std::string text;
  for (const auto& [key, value] : map) text += (text.empty() ? "" : "|") + key;
  return text;
}

// An option whose value is one of a few words.
template <class Value>
void add_choice(CLI::App& app, const std::string& name, Value& to,
                const std::map<std::string, Value>& values,
                const std::string& help) {
  std::string now;
  for (const auto& [key, value] : values) {
    if (value == to) now = key;
  }
  const auto parse = [&to, &values, name](const std::string& word) {
    const auto found = values.find(word);
    if (found == values.end()) {
      throw CLI::ValidationError(
          name, "'" + word + "' is not one of " + keys(values));
    }
    to = found->second;
  };
  app.add_option_function<std::string>(name, parse, help + " [" + now + "]")
      ->type_name(keys(values));
}

void add_model(CLI::App& app, Options& o) {
  Shape& s = o.shape;
  app.add_option("--layers", s.layers, "transformer blocks");
  app.add_option("--hidden", s.hidden, "width");
  app.add_option("--heads", s.heads, "attention heads");
  app.add_option("--kv-heads", s.kv_heads, "key and value heads");
  app.add_option("--ffn", s.ffn, "inner width of the feed-forward part");
  app.add_option("--seq", s.seq, "bytes per sample");
  app.add_flag("--tied", s.tied, "the embedding is also the head");
  add_choice(app, "--dtype", o.dtype, kDtypes, "what the model computes in");
  add_choice(app, "--checkpoint", s.checkpoint, kCheckpoints,
             "block: keep only block inputs and recompute the rest");
}

void add_training(CLI::App& app, Options& o) {
  app.add_option("--data", o.data,
                 "UTF-8 file or folder to train on; needed, may be repeated")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--max-data", o.max_data_mib, "read at most this many MiB")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  app.add_option("--steps", o.steps, "optimizer steps")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app.add_option("--micro-batch", o.shape.micro_batch,
                 "samples per microbatch");
  app.add_option("--global-batch", o.global_batch,
                 "samples per step, over all ranks")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app.add_option("--lr", o.lr, "highest learning rate")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--warmup", o.warmup, "steps to reach it")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--weight-decay", o.weight_decay, "of the matrices")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--clip", o.clip, "largest gradient norm; 0: no clipping")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--seed", o.seed, "of weights and samples");
  app.add_option("--eval-every", o.eval_every,
                 "steps between looks at held-out text; 0: only at the end")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--eval-batches", o.eval_batches,
                 "microbatches per look, over all ranks")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
}

void add_parallel(CLI::App& app, Options& o) {
  add_choice(app, "--strategy", o.strategy, kStrategies,
             "where parameters, gradients and optimizer states live");
  app.add_option("--mesh", o.mesh,
                 "axes over the ranks, e.g. \"dp_replicate=2,dp_shard=4\"");
  app.add_flag("--replicate-root", o.replicate_root,
               "keep embeddings and head whole whatever the strategy");
  app.add_option("--prefetch", o.prefetch,
                 "units gathered ahead; 0: the plan decides, -1: none");
  add_choice(app, "--gather", o.gather, kGathers, "how units are gathered");
  add_choice(app, "--accumulate", o.accumulate, kAccumulates,
             "fast: products add into gradients");
  add_choice(app, "--defer", o.defer, kDefers,
             "reduce in each microbatch or in the last");
  app.add_option("--nesting", o.nesting,
                 "levels of the gradient sum, outermost first, e.g. \"4x2\"");
  add_choice(app, "--device", o.device, kDevices, "where the model computes");
  app.add_option("--device-id", o.device_id,
                 "with cuda: which GPU; -1: the rank's number on its host")
      ->check(CLI::Range(-1, 1023));
  app.add_option("--ranks", o.ranks, "with --threads: how many")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--threads", o.threads,
               "run --ranks ranks as threads of this process");
}

void add_output(CLI::App& app, Options& o) {
  app.add_option("--json", o.json, "write one JSON object per step here");
  app.add_option("--trace", o.trace,
                 "write trace.json (Perfetto) and timeline.svg of the last "
                 "steps into this folder");
  app.add_flag("--poison", o.poison,
               "fill freed memory with NaN, to find uses of it");
  app.add_flag("--hash", o.hash, "print a hash of all weights at the end");
  add_choice(app, "--progress", o.progress, kProgress, "how to show progress");
}

}  // namespace

Options::Options()
    : dtype(ALQ_F32),
      strategy(ALQ_STRATEGY_DEFAULT),
      gather(ALQ_GATHER_AUTO),
      accumulate(ALQ_ACCUMULATE_EXACT),
      defer(ALQ_DEFER_DEFAULT),
      device(ALQ_DEVICE_CPU) {}

int parse_options(int argc, char** argv, Options* options) {
  CLI::App app(
      "Trains a small transformer on bytes of text, on one rank or on many:\n"
      "  gpt --data book.txt\n"
      "  aliquot run -n 4 -- gpt --data book.txt --strategy ddp\n",
      "gpt");
  app.option_defaults()->always_capture_default()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);
  add_model(app, *options);
  add_training(app, *options);
  add_parallel(app, *options);
  add_output(app, *options);
  try {
    app.parse(argc, argv);
    // After parsing, so that a misspelt option is named first.
    if (options->data.empty()) {
      throw CLI::ValidationError("--data is required");
    }
    if (options->threads != (options->ranks > 0)) {
      throw CLI::ValidationError("--threads and --ranks belong together");
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return -1;
}

}  // namespace gpt
