// One case of `aliquot bench coll`: buffers, verification, paired timing.
#include <fmt/format.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "tools/bench_calls.h"
#include "tools/bench_coll.h"

namespace aliquot::tools {
namespace {

constexpr int kWarmUp = 40;  // the library has chosen its way by then

// Element i of rank's input: different for every rank and element, rounded
// differently in every order of summation.
float input(int rank, int64_t i) {
  uint32_t x = static_cast<uint32_t>(i) * 2654435761u +
               static_cast<uint32_t>(rank + 1) * 40503u;
  x ^= x >> 15;
  x *= 2246822519u;
  x ^= x >> 13;
  return static_cast<float>(static_cast<int32_t>(x)) * 0x1p-31f;
}

float canonical_sum(int ranks, int64_t i) {
  float sum = input(0, i);
  for (int r = 1; r < ranks; ++r) sum += input(r, i);
  return sum;
}

struct Shape {
  Op op;
  int rank, size;
  int64_t elements, part;  // of the larger buffer; its size-th part
  int64_t src_count() const { return op == Op::kAllGather ? part : elements; }
  int64_t dst_count() const {
    return op == Op::kReduceScatter ? part : elements;
  }
  float expected(int64_t i) const {
    switch (op) {
      case Op::kAllReduce: return canonical_sum(size, i);
      case Op::kAllGather: return input(static_cast<int>(i / part), i % part);
      case Op::kReduceScatter: return canonical_sum(size, part * rank + i);
      case Op::kAllToAll:
        return input(static_cast<int>(i / part), part * rank + i % part);
      default: return input(0, i);
    }
  }
};

void* huge_pages(int64_t bytes) {
  constexpr size_t kHuge = size_t{2} << 20;
  size_t size = (static_cast<size_t>(bytes) + kHuge - 1) / kHuge * kHuge;
  void* p = std::aligned_alloc(kHuge, size);
  if (p != nullptr) madvise(p, size, MADV_HUGEPAGE);
  return p;
}

// A library buffer or the caller's own memory.
class CaseMemory {
 public:
  CaseMemory(Team& team, alq_context* context, const std::string& kind,
             int64_t bytes) {
    if (kind != "shared") {
      own_.reset(kind == "huge" ? huge_pages(bytes)
                                : std::malloc(static_cast<size_t>(bytes)));
      data_ = static_cast<float*>(own_.get());
      if (data_ == nullptr) team.fail(fmt::format("no {} bytes", bytes));
      return;
    }
    alq_error error = {};
    error.struct_size = sizeof error;
    team.check(alq_buffer_alloc(context, bytes, &buffer_, &error), error,
               "alq_buffer_alloc");
    data_ = static_cast<float*>(alq_buffer_data(buffer_));
  }
  CaseMemory(const CaseMemory&) = delete;
  CaseMemory& operator=(const CaseMemory&) = delete;
  ~CaseMemory() { alq_buffer_release(buffer_); }
  float* data() const { return data_; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> own_;
  alq_buffer* buffer_ = nullptr;
  float* data_ = nullptr;
};

struct Buffers {
  float* src;
  float* dst;
};

Buffers place(const Shape& s, bool in_place, float* base) {
  if (s.op == Op::kBroadcast) return {base, base};
  if (!in_place) return {base, base + s.elements};
  if (s.op == Op::kAllGather) return {base + s.part * s.rank, base};
  if (s.op == Op::kReduceScatter) return {base, base + s.part * s.rank};
  return {base, base};
}

alq_status call(alq_group* group, const Shape& s, const Buffers& b,
                alq_error* error) {
  switch (s.op) {
    case Op::kAllReduce:
      return alq_group_all_reduce(group, b.src, b.dst, s.elements, ALQ_F32,
                                  ALQ_SUM, nullptr, nullptr, error);
    case Op::kAllGather:
      return alq_group_all_gather(group, b.src, b.dst, s.part, ALQ_F32, nullptr,
                                  nullptr, error);
    case Op::kReduceScatter:
      return alq_group_reduce_scatter(group, b.src, b.dst, s.part, ALQ_F32,
                                      ALQ_SUM, nullptr, nullptr, error);
    case Op::kBroadcast:
      return alq_group_broadcast(group, b.dst, s.elements, ALQ_F32, 0, nullptr,
                                 nullptr, error);
    case Op::kAllToAll:
      return alq_group_all_to_all(group, b.src, b.dst, s.part, ALQ_F32, nullptr,
                                  nullptr, error);
    case Op::kBarrier: return alq_group_barrier(group, nullptr, nullptr, error);
  }
  return ALQ_INTERNAL;
}

// Runs op once on known data and compares every bit.
template <typename Run>
void verify(Team& team, const Shape& s, const Buffers& b, const char* who,
            Run run) {
  if (s.op == Op::kBarrier) return run();
  std::fill(b.dst, b.dst + s.dst_count(), -7.0f);
  for (int64_t i = 0; i < s.src_count(); ++i) b.src[i] = input(s.rank, i);
  run();
  for (int64_t i = 0; i < s.dst_count(); ++i) {
    float want = s.expected(i);
    if (std::memcmp(&want, b.dst + i, sizeof want) == 0) continue;
    team.fail(
        fmt::format("{} of {} elements by {} is wrong: element {} is {}, "
                    "not {}",
                    op_name(s.op), s.elements, who, i, b.dst[i], want));
  }
  team.barrier();
}

template <typename Run>
double seconds_of(Run run, int64_t times) {
  double start = now_s();
  for (int64_t i = 0; i < times; ++i) run();
  return (now_s() - start) / static_cast<double>(times);
}

// Per operation, of the slowest rank; one more to warm the caches.
template <typename Run>
double batch(Team& team, Run run, int64_t times) {
  run();
  team.barrier();
  return team.largest(seconds_of(run, times));
}

// Each operation on a source that its owner has just written, as after a
// computation: the writing and a barrier are not counted.
template <typename Run>
double fresh_batch(Team& team, Run run, int64_t times, float* src,
                   int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < times; ++i) {
    std::memset(src, 0, static_cast<size_t>(count) * sizeof(float));
    team.barrier();
    sum += seconds_of(run, 1);
  }
  return team.largest(sum / static_cast<double>(times));
}

// Who is timed in turn, and what it is told to be fresh.
struct Contestant {
  float* src = nullptr;
  std::function<void()> run;
};

double thread_cpu_s() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

}  // namespace

CollResult measure(Team& team, alq_group* group, alq_context* context,
                   const CollCase& what, const CollOptions& options) {
  Shape s = {what.op, team.rank(), team.size(), 0, 0};
  s.part = what.bytes / static_cast<int64_t>(sizeof(float)) / team.size();
  s.elements = s.part * team.size();
  int64_t floats = std::max<int64_t>(2 * s.elements, 16);
  CaseMemory memory(team, context, what.buffers,
                    floats * static_cast<int64_t>(sizeof(float)));
  Buffers b = place(s, what.in_place, memory.data());
  FloorBuffers floor = {&team, s.elements, what.in_place,
                        what.buffers == "shared"};
  Buffers floor_own = {floor.src(s.op, s.rank), floor.dst(s.op, s.rank)};
  auto library = [&] {
    alq_error error = {};
    error.struct_size = sizeof error;
    alq_status status = call(group, s, b, &error);
    if (status != ALQ_OK) team.check(status, error, op_name(s.op));
  };
  auto bare = [&] { floor_op(team, s.op, floor); };

  std::unique_ptr<CallsFloor> calls;
  if (what.buffers != "shared") {
    calls = CallsFloor::make(team, s.op, s.elements, what.in_place);
  }
  Contestant contestants[3] = {{b.src, library}, {floor_own.src, bare}, {}};

  verify(team, s, b, "the library", library);
  verify(team, s, floor_own, "the bare loop", bare);
  if (calls != nullptr) {
    contestants[2] = {calls->src(), [&] { calls->run(); }};
    verify(team, s, {calls->src(), calls->dst()}, "the loop of calls",
           contestants[2].run);
    std::fill_n(calls->src(), s.src_count(), 0.0f);
    std::fill_n(calls->dst(), s.dst_count(), 0.0f);
  }
  // Zeros stay zeros, however often they are summed in place.
  std::memset(memory.data(), 0, static_cast<size_t>(floats) * sizeof(float));
  std::memset(team.memory(s.rank), 0,
              static_cast<size_t>(2 * s.elements) * sizeof(float));
  team.barrier();
  const int rounds = calls != nullptr ? 3 : 2;
  auto time = [&](const Contestant& c, int64_t times) {
    return options.fresh ? fresh_batch(team, c.run, times, c.src, s.src_count())
                         : batch(team, c.run, times);
  };
  for (int i = 0; i < kWarmUp; ++i) {
    for (int k = 0; k < rounds; ++k) {
      if (options.fresh) time(contestants[k], 1);
      if (!options.fresh) contestants[k].run();
    }
  }
  double estimate = batch(team, library, 3);
  CollResult result;
  result.what = what;
  result.ops_per_batch = static_cast<int64_t>(
      std::clamp(options.batch_ms * 1e-3 / estimate, 1.0, 5000.0));
  std::vector<double> seconds[3], ratios[3];
  for (int i = 0; i < options.pairs; ++i) {
    for (int k = 0; k < rounds; ++k) {
      seconds[k].push_back(time(contestants[k], result.ops_per_batch));
      ratios[k].push_back(seconds[0].back() / seconds[k].back());
    }
  }
  result.seconds = range_of(seconds[0]);
  result.floor_seconds = range_of(seconds[1]);
  result.ratio = range_of(ratios[1]);
  result.has_calls = calls != nullptr;
  if (result.has_calls) {
    result.calls_seconds = range_of(seconds[2]);
    result.calls_ratio = range_of(ratios[2]);
  }
  return result;
}

Range range_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  auto at = [&](double part) {
    double x = part * static_cast<double>(values.size() - 1);
    size_t i = static_cast<size_t>(x);
    size_t j = std::min(i + 1, values.size() - 1);
    double f = x - std::floor(x);
    return values[i] * (1 - f) + values[j] * f;
  };
  return {at(0.1), at(0.5), at(0.9)};
}

Health check_health(Team& team) {
  std::vector<float> data(32 * 1024, 1.0f);  // 128 KiB: a core's own cache
  volatile float keep = 0;
  auto loop = [&] {
    float sum = 0;
    for (int round = 0; round < 40; ++round) {
      for (float& x : data) x = x * 0.999f + 0.001f, sum += x;
    }
    keep = sum;
  };
  loop();
  constexpr int kTimes = 60;
  std::vector<double> solo, duo;
  double wall = 0, cpu = 0;
  for (int i = 0; i < kTimes; ++i) {
    team.barrier();
    if (team.rank() == 0) solo.push_back(seconds_of(loop, 1));
    team.barrier();
    double cpu_before = thread_cpu_s();
    double own = seconds_of(loop, 1);
    cpu += thread_cpu_s() - cpu_before;
    wall += own;
    duo.push_back(team.largest(own));
  }
  Health h;
  h.stolen = team.largest(std::max(0.0, 1 - cpu / wall));
  if (team.rank() == 0) {
    Range alone = range_of(solo), together = range_of(duo);
    h.solo_spread = alone.high / alone.low;
    h.duo_over_solo = together.median / alone.median;
  }
  h.solo_spread = team.of_rank_0(h.solo_spread);
  h.duo_over_solo = team.of_rank_0(h.duo_over_solo);
  bool own_cores = team.size() <= usable_cores();
  h.noisy = h.solo_spread > 1.25 ||
            (own_cores && (h.duo_over_solo > 1.25 || h.stolen > 0.03));
  return h;
}

}  // namespace aliquot::tools
