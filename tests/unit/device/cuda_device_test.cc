// The CUDA device over the stand-in for the driver: order, lifetimes, captures,
// failures.  Nothing here says anything about a GPU.
#define BOOST_TEST_MODULE cuda_device
#include "device/cuda/cuda_device.h"

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <thread>
#include <vector>

#include "tests/doubles/cuda/calls.h"

using namespace aliquot;  // NOLINT

namespace {

constexpr int64_t kSecond = 1'000'000'000;

std::shared_ptr<Context> make_context() {
  auto context = std::make_shared<Context>(0, 1);
  context->timeout_ns = 20 * kSecond;
  context->library_paths["cuda"] = DOUBLE_LIBRARY;
  if (kernels::cuda_image().bytes == 0) context->cuda_image = DOUBLE_IMAGE;
  return context;
}

Deadline soon() { return Deadline::after(20 * kSecond); }

// Fails the test with the message.
void ok(const Status& status) {
  BOOST_REQUIRE_MESSAGE(status.ok(), status.message());
}
template <typename T>
T ok(Result<T> result) {
  ok(result.status());
  return std::move(*result);
}

struct Fixture {
  Fixture() : device(ok(CudaDevice::open(make_context(), 0))) {
    double_seed(1);
    double_reset_counts();
  }
  ~Fixture() {
    double_mutate(nullptr);
    double_step(0);
    double_delay_us(200);
    device.reset();
    BOOST_TEST(double_violations() == 0);
  }
  std::shared_ptr<Stream> stream() { return ok(device->create_stream("s")); }
  std::shared_ptr<Event> event() { return ok(device->create_event()); }
  std::unique_ptr<Memory> floats(int64_t n) {
    return ok(device->allocate(n * 4, "floats"));
  }

  std::shared_ptr<CudaDevice> device;
};

float* floats_of(const Memory& m) { return reinterpret_cast<float*>(m.data()); }

kernels::FillArgs fill_args(const Memory& m, int64_t n, float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return {m.data(), n, bits, 4};
}

void fill(CudaDevice& d, Stream* s, const Memory& m, int64_t n, float value) {
  auto args = fill_args(m, n, value);
  ok(d.launch(s, kernels::OpCode::kFill, &args, sizeof args));
}

void add(CudaDevice& d, Stream* s, const Memory& to, const Memory& from,
         int64_t n) {
  kernels::AccumulateArgs args = {to.data(), from.data(), n, ALQ_F32, ALQ_F32};
  ok(d.launch(s, kernels::OpCode::kAccumulate, &args, sizeof args));
}

void copy(CudaDevice& d, Stream* s, void* to, const void* from, int64_t n) {
  kernels::CopyArgs args = {to, from, n * 4};
  ok(d.launch(s, kernels::OpCode::kCopy, &args, sizeof args));
}

std::vector<float> read(CudaDevice& d, const Memory& m, int64_t n) {
  std::vector<float> out(static_cast<size_t>(n));
  copy(d, nullptr, out.data(), m.data(), n);
  return out;
}

int64_t wrong(const std::vector<float>& values, float expected) {
  int64_t bad = 0;
  for (float v : values) bad += v != expected;
  return bad;
}

constexpr int64_t kN = 10'007;  // no multiple of anything

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

// A stream that is held back until release().
struct Held {
  explicit Held(CUstream stream) {
    double_enqueue(
        stream,
        [](void* p) {
          while (!static_cast<std::atomic<bool>*>(p)->load()) {
            std::this_thread::sleep_for(std::chrono::microseconds(50));
          }
        },
        &go);
  }
  ~Held() { go = true; }
  std::atomic<bool> go{false};
};

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
  BOOST_TEST(cuStreamEndCapture(raw, &graph) == 0);  // it is still good
  cuGraphDestroy(graph);
  held.go = true;
  ok(device->synchronize(*b, soon()));
}

BOOST_FIXTURE_TEST_CASE(the_callers_streams_are_used_as_they_are, Fixture) {
  auto own = stream();
  alq_stream given = {ALQ_DEVICE_CUDA, 0, device->native(*own)};
  Stream* s = ok(device->from_abi(&given));
  BOOST_TEST(device->native(*s) == given.handle);
  BOOST_TEST(ok(device->from_abi(&given)) == s);
  BOOST_TEST(ok(device->from_abi(nullptr)) == static_cast<Stream*>(nullptr));
  auto refused = [&](alq_stream bad) {
    return device->from_abi(&bad).status().code() == ALQ_INVALID_ARGUMENT;
  };
  BOOST_TEST(refused({ALQ_DEVICE_CUDA, 0, nullptr}));
  BOOST_TEST(refused({ALQ_DEVICE_CUDA, 1, given.handle}));
  BOOST_TEST(refused({ALQ_DEVICE_CPU, 0, given.handle}));
  auto other = ok(CudaDevice::open(make_context(), 1));
  auto theirs = ok(other->create_stream("theirs"));
  BOOST_TEST(refused({ALQ_DEVICE_CUDA, 0, other->native(*theirs)}));
}

BOOST_FIXTURE_TEST_CASE(a_broken_context_stays_broken, Fixture) {
  auto s = stream();
  auto x = floats(kN);
  double_fail("kernel", kIllegalAddress, 1);
  fill(*device, s.get(), *x, kN, 1);
  Status first = device->synchronize(*s, soon());
  BOOST_TEST(first.code() == ALQ_INTERNAL);
  BOOST_TEST(first.domain() == ALQ_DOMAIN_CUDA);
  BOOST_TEST(first.native_code() == kIllegalAddress);
  BOOST_TEST(first.message().find("CUDA_ERROR_ILLEGAL_ADDRESS (700)") !=
             std::string::npos);
  BOOST_TEST(first.message().find("device 0") != std::string::npos);
  auto args = fill_args(*x, kN, 2);
  double_reset_counts();
  Status later =
      device->launch(s.get(), kernels::OpCode::kFill, &args, sizeof args);
  BOOST_TEST(later.message().find("failed earlier") != std::string::npos);
  BOOST_TEST(device->create_event().status().code() == ALQ_INTERNAL);
  BOOST_TEST(device->allocate(8, "x").status().code() == ALQ_INTERNAL);
  BOOST_TEST(double_count("launch") == 0);
}

BOOST_FIXTURE_TEST_CASE(errors_name_the_call, Fixture) {
  auto s = stream();
  auto e = event();
  double_fail("cuEventRecord", kInvalidHandle, 0);
  Status status = device->record(*e, s.get());
  BOOST_TEST(status.code() == ALQ_INVALID_ARGUMENT);
  BOOST_TEST(status.message().find(
                 "cuEventRecord returned CUDA_ERROR_INVALID_HANDLE (400)") !=
             std::string::npos);
  ok(device->record(*e, s.get()));  // not sticky
}

BOOST_FIXTURE_TEST_CASE(opening_says_what_is_missing, Fixture) {
  auto context = make_context();
  auto bad_id = CudaDevice::open(context, 7);
  BOOST_TEST(bad_id.status().code() == ALQ_INVALID_ARGUMENT);
  BOOST_TEST(bad_id.status().message().find("shows 2 CUDA devices") !=
             std::string::npos);
  BOOST_TEST(CudaDevice::open(context, -1).status().code() ==
             ALQ_INVALID_ARGUMENT);

  auto none = std::make_shared<Context>(0, 1);
  none->library_paths["cuda"] = "/nowhere/libcuda.so.1";
  auto no_driver = CudaDevice::open(none, 0);
  BOOST_TEST(no_driver.status().code() == ALQ_UNAVAILABLE);
  BOOST_TEST(no_driver.status().message().find("/nowhere/libcuda.so.1") !=
             std::string::npos);

  double_fail("lookup cuLaunchKernel", kNotFound, 0);
  auto old = CudaDevice::open(make_context(), 0);
  BOOST_TEST(old.status().code() == ALQ_UNAVAILABLE);
  BOOST_TEST(old.status().message().find("cuLaunchKernel of CUDA 12.0") !=
             std::string::npos);

  double_fail("cuInit", kSystemDriverMismatch, 0);
  auto mismatch = CudaDevice::open(make_context(), 0);
  BOOST_TEST(mismatch.status().code() == ALQ_UNAVAILABLE);

  double_fail("cuModuleLoadData", kNoBinaryForGpu, 0);
  auto other_card = CudaDevice::open(make_context(), 0);
  BOOST_TEST(other_card.status().code() == ALQ_UNAVAILABLE);
  BOOST_TEST(other_card.status().message().find("ALQ_CUDA_ARCHS") !=
             std::string::npos);
}

BOOST_FIXTURE_TEST_CASE(stamps_are_on_the_hosts_clock, Fixture) {
  auto at = ok(device->allocate_host(8, "stamp"));
  kernels::StampArgs args = {};
  args.at = reinterpret_cast<int64_t*>(at->data());
  int64_t before = now_ns();
  ok(device->launch(nullptr, kernels::OpCode::kStamp, &args, sizeof args));
  int64_t after = now_ns();
  // The stand-in's delays are the error of the measured offset.
  BOOST_TEST(*args.at > before - 50'000'000);
  BOOST_TEST(*args.at < after + 50'000'000);
}

BOOST_FIXTURE_TEST_CASE(the_device_describes_itself, Fixture) {
  Json info = device->info();
  BOOST_TEST(info.at("name").as_string() == "double (host memory)");
  BOOST_TEST(info.at("driver").as_string() == "13.0");
  BOOST_TEST(info.at("capability").as_string() == "9.0");
  auto records = device->libraries().records();
  BOOST_REQUIRE_EQUAL(records.size(), 1u);
  BOOST_TEST(records[0].how == "override");
  BOOST_TEST(records[0].version == "13.0");
}
