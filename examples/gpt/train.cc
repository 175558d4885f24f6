#include "train.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <numbers>
#include <vector>

#include "cuda/cuda_ops.h"
#include "engine.h"
#include "gemm.h"
#include "report.h"
#include "weights.h"

namespace gpt {
namespace {

constexpr size_t kLastSteps = 20;  // the reached loss is their mean

template <class T>
std::unique_ptr<Model> model_on(const Options& o, const Session& session) {
  if (session.stream() == nullptr) return make_model<T>(o.shape);
  const alq_stream& stream = *session.stream();
  cuda::Place place;
  place.driver = session.driver_path();
  place.device = stream.device_id;
  place.stream = stream.handle;
  place.wait = [&session] { session.wait(); };
  return make_model<T>(o.shape, make_cuda_ops<T>(o.shape, std::move(place)));
}

std::unique_ptr<Model> model_of(const Options& o, const Session& session) {
  if (o.dtype == ALQ_F64) return model_on<double>(o, session);
  if (o.dtype == ALQ_BF16) return model_on<Bf16>(o, session);
  return model_on<float>(o, session);
}

double seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// Linear warm-up, then a cosine down to a tenth.
double learning_rate(const Options& o, int64_t step) {
  if (step < o.warmup) {
    return o.lr * static_cast<double>(step + 1) / static_cast<double>(o.warmup);
  }
  const double share =
      static_cast<double>(step - o.warmup) /
      static_cast<double>(std::max<int64_t>(1, o.steps - o.warmup));
  return o.lr * (0.55 + 0.45 * std::cos(std::numbers::pi * share));
}

// Which microbatches a rank computes; see train.h.
struct Share {
  Share(const Options& o, const Session& session)
      : rank(session.data_rank()),
        ranks(session.size()),
        shards(alq_mesh_axis_size(session.mesh(), "dp_shard")) {
    const int64_t unit = ranks * o.shape.micro_batch;
    if (o.global_batch % unit != 0) {
      throw Error(fmt::format(
          "--global-batch {} is not a multiple of {} ranks x --micro-batch {} "
          "= {} samples",
          o.global_batch, ranks, o.shape.micro_batch, unit));
    }
    count = o.global_batch / unit;
    each = o.defer == ALQ_DEFER_EACH ||
           (o.defer == ALQ_DEFER_DEFAULT && shards_gradients(o));
  }

  int64_t microbatch(int64_t data_rank, int64_t j) const {
    if (!each) return data_rank * count + j;
    return (data_rank / shards * count + j) * shards + data_rank % shards;
  }

  int64_t rank, ranks, shards, count;
  bool each;

 private:
  bool shards_gradients(const Options& o) const {
    const int32_t s = o.strategy;
    return s == ALQ_STRATEGY_ZERO2 || s == ALQ_STRATEGY_FSDP ||
           s == ALQ_STRATEGY_HSDP || (s == ALQ_STRATEGY_DEFAULT && ranks > 1);
  }
};

class Trainer {
 public:
  Trainer(const Options& options, const Corpus& corpus, Session& session)
      : o_(options),
        corpus_(corpus),
        session_(session),
        share_(options, session),
        layout_(layout_of(options.shape)),
        model_(model_of(options, session)),
        engine_(session, options, layout_, share_.count),
        tokens_(static_cast<size_t>(options.shape.micro_batch *
                                    (options.shape.seq + 1))) {
    if (!options.trace.empty()) make_folder(options.trace);
    if (session.rank() == 0) reporter_ = std::make_unique<Reporter>(options);
    init_weights(engine_, layout_, options.seed);
  }

  void run();

 private:
  void introduce();
  void step(int64_t t, StepRecord* record);
  double train_loss(int64_t t);
  double held_out_loss();
  void load(int64_t step, int64_t microbatch);
  Summary summarize(double elapsed);
  double rows() const { return static_cast<double>(o_.shape.rows()); }

  const Options& o_;
  const Corpus& corpus_;
  Session& session_;
  Share share_;
  Layout layout_;
  std::unique_ptr<Model> model_;
  Engine engine_;
  std::vector<uint8_t> tokens_;
  std::unique_ptr<Reporter> reporter_;  // rank 0
  std::deque<double> recent_;
};

void Trainer::load(int64_t step, int64_t microbatch) {
  const int64_t first =
      step * o_.global_batch + microbatch * o_.shape.micro_batch;
  for (int64_t i = 0; i < o_.shape.micro_batch; ++i) {
    train_sample(corpus_, o_.seed, static_cast<uint64_t>(first + i),
                 o_.shape.seq, tokens_.data() + i * (o_.shape.seq + 1));
  }
}

// Runs this rank's microbatches; returns the mean loss of all ranks', summed in
// the order of microbatches.
double Trainer::train_loss(int64_t t) {
  std::vector<double> own;
  for (int64_t j = 0; j < share_.count; ++j) {
    load(t, share_.microbatch(share_.rank, j));
    const double scale = engine_.begin_training(rows(), j + 1 == share_.count);
    own.push_back(model_->forward(engine_, tokens_.data()));
    model_->backward(engine_, scale / rows());
    engine_.end_microbatch();
  }
  const std::vector<double> all = session_.gather(own);
  std::vector<double> ordered(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t g = share_.microbatch(at / share_.count, at % share_.count);
    ordered[static_cast<size_t>(g)] = all[i];
  }
  double sum = 0;
  for (const double loss : ordered) sum += loss;
  return sum / (rows() * static_cast<double>(all.size()));
}

// All ranks run equally many passes; those past the end count for nothing.
double Trainer::held_out_loss() {
  const int64_t batches = o_.eval_batches, samples = o_.shape.micro_batch;
  std::vector<double> own;
  for (int64_t g = share_.rank; g < batches + share_.rank; g += share_.ranks) {
    const int64_t first = std::min(g, batches - 1) * samples;
    for (int64_t i = 0; i < samples; ++i) {
      held_out_sample(corpus_, first + i, batches * samples, o_.shape.seq,
                      tokens_.data() + i * (o_.shape.seq + 1));
    }
    engine_.begin_evaluation();
    own.push_back(model_->evaluate(engine_, tokens_.data()));
    engine_.end_microbatch();
  }
  const std::vector<double> all = session_.gather(own);
  const auto rounds = static_cast<int64_t>(own.size());
  double sum = 0;
  for (int64_t g = 0; g < batches; ++g) {
    sum +=
        all[static_cast<size_t>(g % share_.ranks * rounds + g / share_.ranks)];
  }
  return sum / (rows() * static_cast<double>(batches));
}

void Trainer::step(int64_t t, StepRecord* record) {
  const double start = seconds();
  record->step = t + 1;
  record->lr = learning_rate(o_, t);
  record->loss = train_loss(t);
  const alq_step_report report = engine_.step(record->lr, o_);
  const double spent = seconds() - start;
  record->grad_norm = report.grad_norm;
  record->skipped = report.skipped != 0;
  record->tokens_per_s =
      static_cast<double>(o_.global_batch * o_.shape.seq) / spent;
  record->exposed_comm_s = engine_.exposed_seconds();
  record->peak_bytes = engine_.planned_bytes() + model_->activation_bytes();
  record->has_held_out = o_.eval_every > 0 && (t + 1) % o_.eval_every == 0;
  if (record->has_held_out) record->held_out = held_out_loss();
  recent_.push_back(record->loss);
  if (recent_.size() > kLastSteps) recent_.pop_front();
}

void Trainer::introduce() {
  if (reporter_ == nullptr) return;
  reporter_->note(fmt::format("{} bytes of text from {} files ({} held out{})",
                              corpus_.train.size() + corpus_.held_out.size(),
                              corpus_.files, corpus_.held_out.size(),
                              corpus_.cut ? ", cut by --max-data" : ""));
  reporter_->note(fmt::format(
      "{} parameters in {} units; {} rank{} x {} microbatch{} of {} x {} "
      "tokens; per rank {:.1f} MB planned, {:.1f} MB of activations",
      layout_.count(), layout_.units.size(), share_.ranks,
      share_.ranks == 1 ? "" : "s", share_.count, share_.count == 1 ? "" : "es",
      o_.shape.micro_batch, o_.shape.seq,
      static_cast<double>(engine_.planned_bytes()) / 1e6,
      static_cast<double>(model_->activation_bytes()) / 1e6));
  reporter_->note(engine_.progress_text());
}

Summary Trainer::summarize(double elapsed) {
  Summary s;
  s.seconds = elapsed;
  // Before the last look at held-out text, which is no step.
  if (!o_.trace.empty()) engine_.write_trace(o_.trace);
  s.held_out = held_out_loss();
  s.ranks = session_.size();
  s.params = layout_.count();
  for (const double loss : recent_) s.loss += loss;
  s.loss /= static_cast<double>(recent_.size());
  s.hashed = o_.hash;
  if (o_.hash) s.hash = hash_weights(engine_, layout_);
  if (reporter_ == nullptr) return s;
  s.unigram = unigram_entropy(corpus_.train);
  s.bigram = bigram_entropy(corpus_.train);
  return s;
}

void Trainer::run() {
  introduce();
  const double start = seconds();
  for (int64_t t = 0; t < o_.steps; ++t) {
    StepRecord record;
    step(t, &record);
    if (reporter_ != nullptr) reporter_->step(record, seconds() - start);
  }
  const Summary summary = summarize(seconds() - start);
  if (reporter_ != nullptr) reporter_->finish(summary);
  engine_.close();
}

}  // namespace

void check_options(const Options& options) {
  const std::string reason = why_not(options.shape);
  if (!reason.empty()) throw Error(reason);
  for (const double x : {options.lr, options.weight_decay, options.clip}) {
    if (!std::isfinite(x))
      throw Error("--lr, --weight-decay and --clip must be finite");
  }
  if (options.warmup > (int64_t{1} << 40)) throw Error("--warmup is too long");
  if (options.global_batch % options.shape.micro_batch == 0) return;
  throw Error(
      fmt::format("--global-batch {} is not a multiple of "
                  "--micro-batch {}",
                  options.global_batch, options.shape.micro_batch));
}

void train(const Options& options, const Corpus& corpus, const Place& place) {
  use_one_blas_thread();
  Session session(place, {options.device, options.device_id}, options.mesh);
  try {
    Trainer(options, corpus, session).run();
  } catch (const std::exception& error) {
    session.abort(error.what());
    throw Error(fmt::format("rank {}: {}", session.rank(), error.what()));
  }
  session.close();
}

}  // namespace gpt
