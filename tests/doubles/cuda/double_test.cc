// The stand-in itself keeps the driver's rules, and breaks what it is told to.
#define BOOST_TEST_MODULE cuda_double
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <vector>

#include "tests/doubles/cuda/calls.h"

namespace {

// Context 0, and streams and events that end with the test.
struct Fixture {
  Fixture() {
    BOOST_REQUIRE_EQUAL(cuInit(0), kSuccess);
    BOOST_REQUIRE_EQUAL(cuDevicePrimaryCtxRetain(&context, 0), kSuccess);
    cuCtxPushCurrent_v2(context);
    double_reset_counts();
  }
  ~Fixture() {
    double_mutate(nullptr);
    for (CUstream s : streams) {
      cuStreamSynchronize(s);
      cuStreamDestroy_v2(s);
    }
    for (CUevent e : events) cuEventDestroy_v2(e);
    CUcontext popped = nullptr;
    cuCtxPopCurrent_v2(&popped);
    cuDevicePrimaryCtxRelease_v2(0);
    BOOST_TEST(double_violations() == 0);
  }
  CUstream stream() {
    CUstream s = nullptr;
    BOOST_REQUIRE_EQUAL(cuStreamCreate(&s, kStreamNonBlocking), kSuccess);
    streams.push_back(s);
    return s;
  }
  CUevent event() {
    CUevent e = nullptr;
    BOOST_REQUIRE_EQUAL(cuEventCreate(&e, kEventDisableTiming), kSuccess);
    events.push_back(e);
    return e;
  }

  CUcontext context = nullptr;
  std::vector<CUstream> streams;
  std::vector<CUevent> events;
};

// Multiplies and adds: the order of two such steps shows in the number.
struct Step {
  int64_t* value;
  int64_t factor, add;
};
void apply(void* p) {
  const Step& s = *static_cast<Step*>(p);
  // Atomic: the mutations make races of it.
  std::atomic_ref<int64_t> value(*s.value);
  value.store(value.load() * s.factor + s.add);
}

// x = 3 on one stream, then x = x * 10 + 1 on another: 31 if in order.
int64_t ordered(Fixture& f, int64_t* value) {
  CUstream a = f.stream(), b = f.stream();
  CUevent e = f.event();
  static Step first, second;
  *value = 0;
  first = {value, 1, 3};
  second = {value, 10, 1};
  BOOST_TEST(double_enqueue(a, apply, &first) == kSuccess);
  BOOST_TEST(cuEventRecord(e, a) == kSuccess);
  BOOST_TEST(cuStreamWaitEvent(b, e, 0) == kSuccess);
  BOOST_TEST(double_enqueue(b, apply, &second) == kSuccess);
  BOOST_TEST(cuStreamSynchronize(b) == kSuccess);
  return std::atomic_ref<int64_t>(*value).load();
}

}  // namespace

BOOST_FIXTURE_TEST_CASE(events_order_streams, Fixture) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    double_seed(seed);
    int64_t value = 0;
    BOOST_TEST(ordered(*this, &value) == 31);
  }
  BOOST_TEST(double_count("wait") == 20);
  BOOST_TEST(double_count("record") == 20);
  BOOST_TEST(double_count("enqueue") == 40);
}

// An event waits for the record that was the last when the wait was issued.
BOOST_FIXTURE_TEST_CASE(record_is_a_snapshot, Fixture) {
  CUstream a = stream(), b = stream();
  CUevent e = event();
  int64_t value = 0;
  Step early{&value, 1, 5}, late{&value, 100, 0};
  cuEventRecord(e, a);
  cuStreamWaitEvent(b, e, 0);
  double_enqueue(b, apply, &early);
  cuStreamSynchronize(b);
  cuEventRecord(e, b);  // b is idle: reached soon, whatever a does
  double_enqueue(a, apply, &late);
  cuStreamSynchronize(a);
  BOOST_TEST(cuEventSynchronize(e) == kSuccess);
  BOOST_TEST(value == 500);
}

BOOST_FIXTURE_TEST_CASE(memory_is_poisoned, Fixture) {
  CUdeviceptr p = 0;
  BOOST_REQUIRE_EQUAL(cuMemAlloc_v2(&p, 100), kSuccess);
  auto* bytes = reinterpret_cast<unsigned char*>(p);
  BOOST_TEST(int{bytes[0]} == 0xff);
  bytes[0] = 7;
  BOOST_TEST(cuMemFree_v2(p) == kSuccess);
  BOOST_TEST(int{bytes[0]} == 0xff);
  BOOST_TEST(cuMemcpyAsync(p, p, 10, stream()) == kInvalidValue);
  BOOST_TEST(double_violations() == 1);
  double_forgive();
}

BOOST_FIXTURE_TEST_CASE(fences_are_checked, Fixture) {
  CUdeviceptr p = 0;
  BOOST_REQUIRE_EQUAL(cuMemAlloc_v2(&p, 100), kSuccess);
  reinterpret_cast<unsigned char*>(p)[100] = 1;
  cuMemFree_v2(p);
  BOOST_TEST(double_violations() == 1);
  double_forgive();
}

BOOST_FIXTURE_TEST_CASE(default_streams_are_violations, Fixture) {
  CUevent e = event();
  BOOST_TEST(cuEventRecord(e, nullptr) == kInvalidHandle);
  BOOST_TEST(cuEventRecord(e, legacy_stream()) == kInvalidHandle);
  BOOST_TEST(double_violations() == 2);
  double_forgive();
}

BOOST_FIXTURE_TEST_CASE(a_step_must_not_wait_or_allocate, Fixture) {
  double_step(1);
  CUdeviceptr p = 0;
  BOOST_TEST(cuMemAlloc_v2(&p, 100) == kSuccess);
  BOOST_TEST(cuStreamSynchronize(stream()) == kSuccess);
  double_step(0);
  BOOST_TEST(double_violations() == 2);
  double_forgive();
  cuMemFree_v2(p);
}

namespace {

// Two streams side by side between a fork and a join.
struct Captured {
  int64_t left = 0, right = 0, sum = 0;
  Step one{&left, 2, 1}, two{&right, 3, 1};
  static void add(void* p) {
    auto* self = static_cast<Captured*>(p);
    self->sum = self->left * 1000 + self->right;
  }
};

CUgraph capture(Fixture& f, Captured* c) {
  CUstream a = f.stream(), b = f.stream();
  CUevent fork = f.event(), join = f.event();
  BOOST_TEST(cuStreamBeginCapture_v2(a, kCaptureModeGlobal) == kSuccess);
  BOOST_TEST(cuEventRecord(fork, a) == kSuccess);
  BOOST_TEST(cuStreamWaitEvent(b, fork, 0) == kSuccess);
  BOOST_TEST(double_enqueue(a, apply, &c->one) == kSuccess);
  BOOST_TEST(double_enqueue(b, apply, &c->two) == kSuccess);
  BOOST_TEST(cuEventRecord(join, b) == kSuccess);
  BOOST_TEST(cuStreamWaitEvent(a, join, 0) == kSuccess);
  BOOST_TEST(double_enqueue(a, Captured::add, c) == kSuccess);
  CUgraph graph = nullptr;
  BOOST_TEST(cuStreamEndCapture(a, &graph) == kSuccess);
  return graph;
}

}  // namespace

BOOST_FIXTURE_TEST_CASE(captures_are_replayed_in_order, Fixture) {
  Captured c;
  CUgraph graph = capture(*this, &c);
  size_t nodes = 0;
  cuGraphGetNodes(graph, nullptr, &nodes);
  BOOST_TEST(nodes == 3u);
  BOOST_TEST(c.sum == 0);  // nothing ran yet
  CUgraphExec exec = nullptr;
  BOOST_REQUIRE_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), kSuccess);
  CUstream s = stream();
  for (int k = 0; k < 5; ++k) cuGraphLaunch(exec, s);
  cuStreamSynchronize(s);
  BOOST_TEST(c.sum == 31 * 1000 + 121);
  cuGraphExecDestroy(exec);
  cuGraphDestroy(graph);
}

BOOST_FIXTURE_TEST_CASE(captures_refuse_what_cuda_refuses, Fixture) {
  CUstream a = stream(), b = stream();
  CUevent before = event(), inside = event();
  CUgraph graph = nullptr;
  cuEventRecord(before, b);
  cuStreamBeginCapture_v2(a, kCaptureModeGlobal);
  BOOST_TEST(cuStreamWaitEvent(a, before, 0) == kCaptureIsolation);
  BOOST_TEST(cuStreamEndCapture(a, &graph) == kCaptureInvalidated);

  cuStreamBeginCapture_v2(a, kCaptureModeGlobal);
  CUdeviceptr p = 0;
  BOOST_TEST(cuMemAlloc_v2(&p, 8) == kCaptureUnsupported);
  BOOST_TEST(cuStreamEndCapture(a, &graph) == kCaptureInvalidated);

  cuStreamBeginCapture_v2(a, kCaptureModeGlobal);
  cuEventRecord(inside, a);
  BOOST_TEST(cuStreamWaitEvent(b, inside, 0) == kSuccess);
  int64_t value = 0;
  Step step{&value, 1, 1};
  double_enqueue(b, apply, &step);
  BOOST_TEST(cuStreamEndCapture(a, &graph) == kCaptureUnjoined);
  BOOST_TEST(cuEventQuery(inside) == kCapturedEvent);
}

BOOST_FIXTURE_TEST_CASE(mutations_hit_once_and_are_counted, Fixture) {
  BOOST_TEST(double_mutate("no_such") == -1);
  BOOST_TEST(double_mutate("drop_wait:x") == -1);
  BOOST_REQUIRE_EQUAL(double_mutate("drop_wait:1"), 0);
  double_delay_us(2000);
  int wrong = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    double_mutate("drop_wait:1");
    int64_t value = 0;
    wrong += ordered(*this, &value) != 31;
    for (CUstream s : streams) cuStreamSynchronize(s);
    BOOST_TEST(double_mutated() == 1);
  }
  double_delay_us(200);
  BOOST_TEST(wrong >= 5);
}
