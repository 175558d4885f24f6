// What the engine costs on the host's thread: begin + end of a unit whose data
// is there, in CPU time of the calling thread, with 4 ranks as threads, and one
// operation of the recorder.  Prints medians of 31 rounds.
//
// Usage: engine_bench [ranks]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "aliquot/aliquot.h"
#include "trace/recorder.h"

namespace {

constexpr int kRounds = 31, kPairs = 20'000, kUnits = 16;

void check(alq_status status, const alq_error& err) {
  if (status == ALQ_OK) return;
  std::fprintf(stderr, "engine_bench: %s\n", err.message);
  std::exit(1);
}

double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2,
                   values.end());
  return values[values.size() / 2];
}

template <typename T>
T zeroed() {
  T t = {};
  t.struct_size = sizeof(T);
  return t;
}

alq_engine* make_engine(alq_context* ctx, int32_t gather) {
  alq_error err = zeroed<alq_error>();
  alq_mesh* mesh = nullptr;
  check(alq_mesh_create(ctx, "", &mesh, &err), err);
  alq_engine* engine = nullptr;
  check(alq_engine_create(mesh, nullptr, &engine, &err), err);
  alq_mesh_release(mesh);
  const int64_t shape[] = {1024};
  for (int64_t u = 0; u < kUnits; ++u) {
    std::string name = "w" + std::to_string(u);
    alq_param_desc param = zeroed<alq_param_desc>();
    param.flags = ALQ_PARAM_TRAINABLE;
    param.name = name.c_str();
    param.shape = shape;
    param.ndim = 1;
    param.dtype = ALQ_F32;
    int64_t id = 0;
    check(alq_param_add(engine, &param, &id, &err), err);
    check(alq_unit_add(engine, name.c_str(), &id, 1, 0, nullptr, &err), err);
  }
  alq_plan_desc plan = zeroed<alq_plan_desc>();
  plan.strategy = ALQ_STRATEGY_FSDP;
  plan.gather = gather;
  check(alq_engine_plan(engine, &plan, nullptr, &err), err);
  check(alq_engine_commit(engine, nullptr, &err), err);
  return engine;
}

// Microseconds of this thread per begin + end.
double begin_end(alq_engine* engine) {
  alq_error err = zeroed<alq_error>();
  check(alq_microbatch_begin(engine, ALQ_EVAL, 0, 0, nullptr, &err), err);
  alq_unit_view view = zeroed<alq_unit_view>();
  std::vector<double> rounds;
  for (int round = 0; round <= kRounds; ++round) {
    double begin = thread_seconds();
    for (int i = 0; i < kPairs; ++i) {
      check(alq_unit_begin(engine, 0, ALQ_PASS_F_NOGRAD, nullptr, &view, &err),
            err);
      check(alq_unit_end(engine, 0, ALQ_PASS_F_NOGRAD, nullptr, &err), err);
    }
    if (round > 0) rounds.push_back((thread_seconds() - begin) / kPairs * 1e6);
  }
  check(alq_microbatch_end(engine, nullptr, &err), err);
  return median(rounds);
}

void rank_main(int32_t rank, int32_t ranks, double* out) {
  alq_error err = zeroed<alq_error>();
  alq_open_desc desc = zeroed<alq_open_desc>();
  desc.bootstrap = ALQ_BOOTSTRAP_LOCAL;
  desc.rank = rank;
  desc.world_size = ranks;
  desc.world_name = "engine_bench";
  alq_context* ctx = nullptr;
  check(alq_open(ALQ_ABI_VERSION, &desc, &ctx, &err), err);
  for (int32_t gather : {ALQ_GATHER_COPY, ALQ_GATHER_MAP}) {
    alq_engine* engine = make_engine(ctx, gather);
    out[gather - ALQ_GATHER_COPY] = begin_end(engine);
    check(alq_engine_close(engine, 0, &err), err);
    alq_engine_release(engine);
  }
  check(alq_close(ctx, 0, &err), err);
  alq_release(ctx);
}

double recorder_ns() {
  aliquot::trace::Recorder recorder;
  std::vector<double> rounds;
  for (int round = 0; round <= kRounds; ++round) {
    double begin = thread_seconds();
    for (int i = 0; i < kPairs; ++i) {
      aliquot::trace::Span span;
      span.begin = aliquot::now_ns();
      aliquot::trace::Span* slot = recorder.add(span);
      slot->end = aliquot::now_ns();
    }
    if (round > 0) rounds.push_back((thread_seconds() - begin) / kPairs * 1e9);
  }
  return median(rounds);
}

}  // namespace

int main(int argc, char** argv) {
  int32_t ranks = argc > 1 ? std::atoi(argv[1]) : 4;
  if (ranks < 1 || ranks > 64) {
    std::fprintf(stderr, "engine_bench: 1 to 64 ranks\n");
    return 2;
  }
  std::vector<double> results(static_cast<size_t>(ranks) * 2);
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < ranks; ++r) {
    threads.emplace_back(rank_main, r, ranks,
                         &results[static_cast<size_t>(r) * 2]);
  }
  for (std::thread& t : threads) t.join();
  double copy = 0, map = 0;
  for (int32_t r = 0; r < ranks; ++r) {
    copy = std::max(copy, results[static_cast<size_t>(r) * 2]);
    map = std::max(map, results[static_cast<size_t>(r) * 2 + 1]);
  }
  std::printf(
      "begin + end, data there, %d ranks, thread CPU time of the slowest "
      "rank: copied %.2f us, mapped %.2f us\n",
      ranks, copy, map);
  std::printf("recorder, one span with both clock readings: %.0f ns\n",
              recorder_ns());
  return 0;
}
