// Order between streams by events, and a captured graph that is replayed.
#include <dlfcn.h>
#include <fmt/format.h>

#include "bench_gpu.h"

namespace aliquot::gpu {
namespace {

using kernels::OpCode;

constexpr int64_t kCount = 1 << 20;

// One stream adds up, another copies after each round: every copy must see
// whole rounds.
void check_events(Machine& m) {
  constexpr int kRounds = 20;
  auto a = need(m.device->create_stream("a"), "create_stream");
  auto b = need(m.device->create_stream("b"), "create_stream");
  auto written = need(m.device->create_event(), "create_event");
  auto read = need(m.device->create_event(), "create_event");
  Array sum(m, ALQ_F32, kCount), one(m, ALQ_F32, kCount);
  one.fill(std::vector<double>(kCount, 1.0));
  std::vector<std::unique_ptr<Array>> copies;
  for (int r = 0; r < kRounds; ++r) {
    copies.push_back(std::make_unique<Array>(m, ALQ_F32, kCount));
  }
  for (int r = 0; r < kRounds; ++r) {
    const Deadline deadline = m.context->deadline(0);
    need(m.device->wait(a.get(), *read, deadline), "wait");
    m.run(OpCode::kAccumulate,
          kernels::AccumulateArgs{sum.device(), one.device(), kCount, ALQ_F32,
                                  ALQ_F32},
          a.get());
    need(m.device->record(*written, a.get()), "record");
    need(m.device->wait(b.get(), *written, deadline), "wait");
    m.run(OpCode::kCopy,
          kernels::CopyArgs{copies[static_cast<size_t>(r)]->device(),
                            sum.device(), kCount * 4},
          b.get());
    need(m.device->record(*read, b.get()), "record");
  }
  m.wait(*b);
  for (int r = 0; r < kRounds; ++r) {
    Array& copy = *copies[static_cast<size_t>(r)];
    copy.fetch();
    for (int64_t i = 0; i < kCount; ++i) {
      if (copy.of_gpu(i) == r + 1) continue;
      return m.report.failed(
          "streams and events",
          fmt::format("round {}: element {} is {}", r + 1, i, copy.of_gpu(i)));
    }
  }
  m.report.ok("streams and events");
}

// Capturing is the caller's: through the driver that the device has loaded.
template <typename F>
F driver_call(Machine& m, const char* name) {
  for (const LibraryRecord& record : m.context->libraries.records()) {
    if (record.name != "cuda") continue;
    void* library = dlopen(record.path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) library = dlopen("libcuda.so.1", RTLD_NOW);
    return reinterpret_cast<F>(dlsym(library, name));
  }
  return nullptr;
}

void check_capture(Machine& m) {
  using namespace cuda;  // NOLINT: the driver's names
  auto begin =
      driver_call<CUresult (*)(CUstream, int)>(m, "cuStreamBeginCapture_v2");
  auto end =
      driver_call<CUresult (*)(CUstream, CUgraph*)>(m, "cuStreamEndCapture");
  auto instantiate =
      driver_call<CUresult (*)(CUgraphExec*, CUgraph, unsigned long long)>(
          m, "cuGraphInstantiateWithFlags");
  auto launch =
      driver_call<CUresult (*)(CUgraphExec, CUstream)>(m, "cuGraphLaunch");
  if (begin == nullptr || end == nullptr || instantiate == nullptr ||
      launch == nullptr) {
    return m.report.failed("capture", "the driver lacks a call for graphs");
  }
  constexpr int kReplays = 3;
  auto stream = need(m.device->create_stream("captured"), "create_stream");
  auto* raw = static_cast<CUstream>(m.device->native(*stream));
  Array sum(m, ALQ_F32, kCount), one(m, ALQ_BF16, kCount);
  one.fill(std::vector<double>(kCount, 0.5));
  CudaBound bound(*m.device);
  need(bound.status(), "bind_thread");
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUresult result = begin(raw, kCaptureModeThreadLocal);
  m.run(OpCode::kAccumulate,
        kernels::AccumulateArgs{sum.device(), one.device(), kCount, ALQ_F32,
                                ALQ_BF16},
        stream.get());
  if (result == kSuccess) result = end(raw, &graph);
  if (result == kSuccess) result = instantiate(&exec, graph, 0);
  for (int r = 0; r < kReplays && result == kSuccess; ++r) {
    result = launch(exec, raw);
  }
  if (result != kSuccess) {
    return m.report.failed("capture", fmt::format("CUresult {}", result));
  }
  m.wait(*stream);
  sum.fetch();
  for (int64_t i = 0; i < kCount; ++i) {
    if (sum.of_gpu(i) == 0.5 * kReplays) continue;
    return m.report.failed("capture", fmt::format("element {} is {} after {} "
                                                  "replays of += 0.5",
                                                  i, sum.of_gpu(i), kReplays));
  }
  m.report.ok("capture");
}

}  // namespace

void check_streams(Machine& m) {
  check_events(m);
  check_capture(m);
}

}  // namespace aliquot::gpu
