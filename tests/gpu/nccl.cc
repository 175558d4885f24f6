// Collectives of `ranks` threads on one GPU through the library's ABI.
#include <fmt/format.h>

#include <mutex>
#include <thread>

#include "aliquot/aliquot.h"
#include "bench_gpu.h"

namespace aliquot::gpu {
namespace {

constexpr int64_t kCount = 4096;

// The first thing that went wrong on any rank.
struct Outcome {
  std::mutex mutex;
  std::string why;
  void say(int32_t rank, const std::string& text) {
    std::lock_guard lock(mutex);
    if (why.empty()) why = fmt::format("rank {}: {}", rank, text);
  }
};

struct Rank {
  alq_context* context = nullptr;
  alq_group* world = nullptr;
  alq_stream stream = {};
  alq_error error = {};
  int32_t rank, ranks;
  Outcome& outcome;

  Rank(int32_t own, int32_t size, Outcome& out)
      : rank(own), ranks(size), outcome(out) {
    error.struct_size = sizeof error;
  }
  ~Rank() {
    if (world != nullptr) alq_group_release(world);
    if (context == nullptr) return;
    alq_stream_release(context, &stream);
    alq_close(context, 20'000'000'000, nullptr);
    alq_release(context);
  }
  bool good(alq_status status, const char* what) {
    if (status == ALQ_OK) return true;
    outcome.say(rank, fmt::format("{}: {}", what, error.message));
    return false;
  }
  bool open() {
    alq_open_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.bootstrap = ALQ_BOOTSTRAP_LOCAL;
    desc.rank = rank;
    desc.world_size = ranks;
    desc.world_name = "gpu-test";
    desc.device_type = ALQ_DEVICE_CUDA;
    desc.timeout_ns = 60'000'000'000;
    return good(alq_open(ALQ_ABI_VERSION, &desc, &context, &error), "open") &&
           good(alq_stream_create(context, &stream, &error), "stream") &&
           good(alq_group_world(context, &world, &error), "world");
  }
};

// Whole numbers, so that every sum is exact in any order.
float value(int32_t rank, int64_t i) {
  return static_cast<float>(rank + 1) + static_cast<float>(i % 17);
}
float sum_of(int32_t ranks, int64_t i) {
  float sum = 0;
  for (int32_t r = 0; r < ranks; ++r) sum += value(r, i);
  return sum;
}

void compare(Rank& r, const std::vector<float>& got, const char* what,
             const std::function<float(int64_t)>& want) {
  for (size_t i = 0; i < got.size(); ++i) {
    const float expected = want(static_cast<int64_t>(i));
    if (got[i] == expected) continue;
    r.outcome.say(r.rank, fmt::format("{}: element {} is {}, not {}", what, i,
                                      got[i], expected));
    return;
  }
}

// Host memory: the library stages it.  Then the caller's stream.
void collectives(Rank& r) {
  const int64_t all = kCount * r.ranks;
  std::vector<float> src(static_cast<size_t>(all)), dst(src.size()),
      part(static_cast<size_t>(kCount));
  for (int64_t i = 0; i < all; ++i) {
    src[static_cast<size_t>(i)] = value(r.rank, i);
  }
  const auto size = static_cast<size_t>(kCount);
  if (!r.good(
          alq_group_all_reduce(r.world, src.data(), dst.data(), all, ALQ_F32,
                               ALQ_SUM, nullptr, nullptr, &r.error),
          "all_reduce")) {
    return;
  }
  compare(r, dst, "all_reduce", [&r](int64_t i) { return sum_of(r.ranks, i); });
  if (!r.good(alq_group_all_gather(r.world, src.data(), dst.data(), kCount,
                                   ALQ_F32, nullptr, nullptr, &r.error),
              "all_gather")) {
    return;
  }
  compare(r, dst, "all_gather", [size](int64_t i) {
    const auto from = static_cast<int32_t>(static_cast<size_t>(i) / size);
    return value(from, i % kCount);
  });
  if (!r.good(alq_group_reduce_scatter(r.world, src.data(), part.data(), kCount,
                                       ALQ_F32, ALQ_SUM, nullptr, nullptr,
                                       &r.error),
              "reduce_scatter")) {
    return;
  }
  compare(r, part, "reduce_scatter",
          [&r](int64_t i) { return sum_of(r.ranks, r.rank * kCount + i); });
}

// On the stream, in device memory; the barrier's end is waited for.
void enqueued(Rank& r) {
  alq_buffer* buffer = nullptr;
  const int64_t bytes = kCount * int64_t{sizeof(float)};
  if (!r.good(alq_buffer_alloc(r.context, bytes, &buffer, &r.error),
              "buffer")) {
    return;
  }
  void* at = alq_buffer_data(buffer);
  const alq_status status = alq_group_all_reduce(
      r.world, at, at, kCount, ALQ_F32, ALQ_SUM, &r.stream, nullptr, &r.error);
  if (r.good(status, "enqueue")) {
    r.good(alq_stream_sync(r.context, &r.stream, 60'000'000'000, &r.error),
           "stream_sync");
  }
  alq_buffer_release(buffer);
}

void run(int32_t rank, int32_t ranks, Outcome& outcome) {
  Rank r(rank, ranks, outcome);
  if (!r.open()) return;
  collectives(r);
  enqueued(r);
}

}  // namespace

void check_nccl(Machine& m, int32_t ranks) {
  Outcome outcome;
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < ranks; ++r) {
    threads.emplace_back([r, ranks, &outcome] { run(r, ranks, outcome); });
  }
  for (std::thread& t : threads) t.join();
  const std::string name =
      fmt::format("NCCL, {} rank{} on one GPU", ranks, ranks == 1 ? "" : "s");
  if (outcome.why.empty()) return m.report.ok(name);
  m.report.failed(name, outcome.why);
}

}  // namespace aliquot::gpu
