// The CUDA device over the stand-in for the driver: order, lifetimes, captures.
// Nothing here says anything about a GPU.
#define BOOST_TEST_MODULE cuda_device
#include "tests/unit/device/cuda_fixture.h"

using namespace aliquot;             // NOLINT
using namespace aliquot::cuda_test;  // NOLINT

namespace {

// x = 1 on one stream, y = 2 on another, x += y on a third: 3 if in order.
int64_t three_streams(Fixture& f) {
  CudaDevice& d = *f.device;
  auto a = f.stream(), b = f.stream(), c = f.stream();
  auto x = f.floats(kN), y = f.floats(kN);
  auto left = f.event(), right = f.event();
  fill(d, a.get(), *x, kN, 1);
  ok(d.record(*left, a.get()));
  fill(d, b.get(), *y, kN, 2);
  ok(d.record(*right, b.get()));
  ok(d.wait(c.get(), *left, soon()));
  ok(d.wait(c.get(), *right, soon()));
  add(d, c.get(), *x, *y, kN);
  ok(d.synchronize(*c, soon()));
  std::vector<float> got = read(d, *x, kN);
  // Before the memory goes: a lost wait leaves work behind.
  for (auto& s : {a, b, c}) ok(d.synchronize(*s, soon()));
  return wrong(got, 3);
}

}  // namespace

BOOST_FIXTURE_TEST_CASE(events_order_streams_under_twenty_seeds, Fixture) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    double_seed(seed);
    BOOST_TEST(three_streams(*this) == 0);
  }
}

BOOST_FIXTURE_TEST_CASE(calls_are_counted, Fixture) {
  double_reset_counts();
  three_streams(*this);
  BOOST_TEST(double_count("launch") == 3);
  BOOST_TEST(double_count("wait") == 2);
  BOOST_TEST(double_count("host_sync") == 1);  // reading into a vector
}

#ifndef __SANITIZE_THREAD__  // faults are races
BOOST_FIXTURE_TEST_CASE(faults_are_seen, Fixture) {
  for (const char* fault :
       {"drop_wait:1", "drop_wait:2", "drop_launch:1", "drop_launch:3",
        "swap_arguments:3", "short_tail:1", "short_tail:3"}) {
    int64_t seen = 0;
    double_delay_us(3000);
    for (uint64_t seed = 1; seed <= 100 && seen == 0; ++seed) {
      double_seed(seed);
      BOOST_REQUIRE_EQUAL(double_mutate(fault), 0);
      seen += three_streams(*this);
      BOOST_TEST(double_mutated() == 1);
    }
    BOOST_TEST_INFO(fault);
    BOOST_TEST(seen > 0);
  }
}

BOOST_FIXTURE_TEST_CASE(use_after_free_is_seen, Fixture) {
  auto s = stream();
  auto x = floats(kN), y = floats(kN);
  fill(*device, nullptr, *y, kN, 2);
  double_delay_us(0);
  std::atomic<bool> go{false};
  double_enqueue(
      static_cast<CUstream>(device->native(*s)),
      [](void* p) {
        while (!static_cast<std::atomic<bool>*>(p)->load()) {
          std::this_thread::yield();
        }
      },
      &go);
  add(*device, s.get(), *x, *y, kN);
  y.reset();
  go = true;
  ok(device->synchronize(*s, soon()));
  BOOST_TEST(wrong(read(*device, *x, kN), 2) == kN);
}
#endif

BOOST_FIXTURE_TEST_CASE(arguments_are_copied, Fixture) {
  auto s = stream();
  auto x = floats(kN), y = floats(kN);
  auto args = fill_args(*x, kN, 7);
  ok(device->launch(s.get(), kernels::OpCode::kFill, &args, sizeof args));
  args = fill_args(*y, kN, 9);
  ok(device->synchronize(*s, soon()));
  BOOST_TEST(wrong(read(*device, *x, kN), 7) == 0);
  BOOST_TEST(wrong(read(*device, *y, kN), 0) == 0);
  std::byte large[257] = {};
  BOOST_TEST(
      device->launch(s.get(), kernels::OpCode::kFill, large, 257).code() ==
      ALQ_INVALID_ARGUMENT);
}

BOOST_FIXTURE_TEST_CASE(no_stream_means_now, Fixture) {
  auto x = floats(kN);
  fill(*device, nullptr, *x, kN, 5);
  BOOST_TEST(floats_of(*x)[kN - 1] == 5);
  auto e = event();
  ok(device->record(*e, nullptr));
  BOOST_TEST(device->done(*e));
  BOOST_TEST(device->asynchronous());
}

BOOST_FIXTURE_TEST_CASE(memory_is_zero_and_freed, Fixture) {
  int64_t before = double_live_bytes();
  {
    auto x = floats(kN);
    auto y = ok(device->allocate_host(kN * 4, "pinned"));
    BOOST_TEST(wrong(read(*device, *x, kN), 0) == 0);
    BOOST_TEST(floats_of(*y)[kN - 1] == 0);
    BOOST_TEST(device->visible(y->data()));
    BOOST_TEST(device->visible(x->data() + 100));
    int local = 0;
    BOOST_TEST(!device->visible(&local));
    BOOST_TEST(double_live_bytes() == before + 2 * kN * 4);
  }
  BOOST_TEST(double_live_bytes() == before);
  auto much = device->allocate(int64_t{1} << 40, "too much");
  BOOST_TEST(much.status().code() == ALQ_RESOURCE_EXHAUSTED);
  BOOST_TEST(much.status().native_code() == kOutOfMemory);
  BOOST_TEST(much.status().message().find("\"too much\" of 1099511627776") !=
             std::string::npos);
  BOOST_TEST(device->allocate(0, "none").status().code() ==
             ALQ_INVALID_ARGUMENT);
}

BOOST_FIXTURE_TEST_CASE(waits_end_at_their_deadline, Fixture) {
  auto s = stream();
  auto e = event();
  BOOST_TEST(device->done(*e));  // never recorded
  {
    Held held(static_cast<CUstream>(device->native(*s)));
    ok(device->record(*e, s.get()));
    BOOST_TEST(!device->done(*e));
    int64_t start = now_ns();
    Status late = device->synchronize(*e, Deadline::after(20'000'000));
    BOOST_TEST(late.code() == ALQ_DEADLINE_EXCEEDED);
    late = device->synchronize(*s, Deadline::after(20'000'000));
    BOOST_TEST(late.code() == ALQ_DEADLINE_EXCEEDED);
    BOOST_TEST(late.message().find("stream \"s\"") != std::string::npos);
    BOOST_TEST(now_ns() - start < 10 * kSecond);
    held.go = true;
    ok(device->synchronize(*s, soon()));
  }
  BOOST_TEST(device->done(*e));
  ok(device->synchronize(*e, soon()));
}

BOOST_FIXTURE_TEST_CASE(pins_last_until_the_stream_is_done, Fixture) {
  auto s = stream();
  auto object = std::make_shared<int>(1);
  std::weak_ptr<int> watch = object;
  {
    Held held(static_cast<CUstream>(device->native(*s)));
    ok(device->pin(*s, std::move(object)));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    BOOST_TEST(!watch.expired());
    held.go = true;
    ok(device->synchronize(*s, soon()));
  }
  for (Deadline d = soon(); !watch.expired() && !d.passed();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  BOOST_TEST(watch.expired());
  BOOST_TEST(double_count("sync") == 0);
}

// A pinned object may be what holds the device.
BOOST_FIXTURE_TEST_CASE(a_pin_may_hold_the_device, Fixture) {
  auto context = make_context();
  std::weak_ptr<Context> watch = context;
  auto other = ok(CudaDevice::open(std::move(context), 1));
  auto s = ok(other->create_stream("s"));
  ok(other->pin(*s, other));
  s.reset();
  other.reset();
  for (Deadline d = soon(); !watch.expired() && !d.passed();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  BOOST_TEST(watch.expired());
}

BOOST_FIXTURE_TEST_CASE(steps_are_captured_and_replayed, Fixture) {
  CudaDevice& d = *device;
  auto a = stream(), b = stream();
  auto x = floats(kN), y = floats(kN);
  auto before = event(), fork = event(), join = event();
  auto object = std::make_shared<int>(1);
  std::weak_ptr<int> watch = object;
  ok(d.record(*before, b.get()));
  ok(d.synchronize(*b, soon()));
  fill(d, nullptr, *y, kN, 1);
  auto raw = static_cast<CUstream>(d.native(*a));

  BOOST_REQUIRE_EQUAL(cuStreamBeginCapture_v2(raw, kCaptureModeGlobal), 0);
  double_step(1);
  BOOST_TEST(ok(d.capture(*a)) != 0u);
  BOOST_TEST(ok(d.capture(*b)) == 0u);
  ok(d.wait(a.get(), *before, soon()));  // has happened: no dependence
  ok(d.record(*fork, a.get()));
  ok(d.wait(b.get(), *fork, soon()));
  add(d, b.get(), *x, *y, kN);
  ok(d.record(*join, b.get()));
  BOOST_TEST(!d.done(*join));
  ok(d.wait(a.get(), *join, soon()));
  add(d, a.get(), *x, *y, kN);
  ok(d.pin(*a, std::move(object)));
  BOOST_TEST(d.synchronize(*a, soon()).code() == ALQ_FAILED_PRECONDITION);
  BOOST_TEST(d.check_waitable(*a).code() == ALQ_FAILED_PRECONDITION);
  double_step(0);
  CUgraph graph = nullptr;
  BOOST_REQUIRE_EQUAL(cuStreamEndCapture(raw, &graph), 0);

  BOOST_TEST(wrong(read(d, *x, kN), 0) == 0);
  CUgraphExec exec = nullptr;
  BOOST_REQUIRE_EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), 0);
  for (int k = 0; k < 5; ++k) cuGraphLaunch(exec, raw);
  ok(d.synchronize(*a, soon()));
  BOOST_TEST(wrong(read(d, *x, kN), 10) == 0);
  // Whoever launches the graph orders what comes after it.
  ok(d.check_waitable(*a));
  ok(d.wait(b.get(), *join, soon()));
  ok(d.synchronize(*join, soon()));
  BOOST_TEST(!watch.expired());
  cuGraphExecDestroy(exec);
  cuGraphDestroy(graph);
  d.close();
  BOOST_TEST(watch.expired());
}

BOOST_FIXTURE_TEST_CASE(captures_need_a_quiet_device, Fixture) {
  auto a = stream(), b = stream();
  auto e = event();
  auto raw = static_cast<CUstream>(device->native(*a));
  Held held(static_cast<CUstream>(device->native(*b)));
  ok(device->record(*e, b.get()));
  cuStreamBeginCapture_v2(raw, kCaptureModeGlobal);
  Status status = device->wait(a.get(), *e, soon());
  BOOST_TEST(status.code() == ALQ_FAILED_PRECONDITION);
  BOOST_TEST(status.message().find("before the capture") != std::string::npos);
  CUgraph graph = nullptr;
  // What is done in a moment is waited for.
  std::thread later([&held] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    held.go = true;
  });
  ok(device->wait(a.get(), *e, soon()));
  later.join();
  BOOST_TEST(cuStreamEndCapture(raw, &graph) == 0);  // it is still good
  cuGraphDestroy(graph);
  held.go = true;
  ok(device->synchronize(*b, soon()));
}
