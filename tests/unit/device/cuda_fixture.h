// What tests of the CUDA device share: a device over the stand-in for the
// driver.
#pragma once

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "device/cuda/cuda_device.h"
#include "tests/doubles/cuda/calls.h"

namespace aliquot::cuda_test {

constexpr int64_t kSecond = 1'000'000'000;

inline std::shared_ptr<Context> make_context() {
  auto context = std::make_shared<Context>(0, 1);
  context->timeout_ns = 20 * kSecond;
  context->library_paths["cuda"] = DOUBLE_LIBRARY;
  if (kernels::cuda_image().bytes == 0) context->cuda_image = DOUBLE_IMAGE;
  return context;
}

inline Deadline soon() { return Deadline::after(20 * kSecond); }

// Fails the test with the message.
inline void ok(const Status& status) {
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

inline float* floats_of(const Memory& m) {
  return reinterpret_cast<float*>(m.data());
}

inline kernels::FillArgs fill_args(const Memory& m, int64_t n, float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return {m.data(), n, bits, 4};
}

inline void fill(CudaDevice& d, Stream* s, const Memory& m, int64_t n,
                 float value) {
  auto args = fill_args(m, n, value);
  ok(d.launch(s, kernels::OpCode::kFill, &args, sizeof args));
}

inline void add(CudaDevice& d, Stream* s, const Memory& to, const Memory& from,
                int64_t n) {
  kernels::AccumulateArgs args = {to.data(), from.data(), n, ALQ_F32, ALQ_F32};
  ok(d.launch(s, kernels::OpCode::kAccumulate, &args, sizeof args));
}

inline void copy(CudaDevice& d, Stream* s, void* to, const void* from,
                 int64_t n) {
  kernels::CopyArgs args = {to, from, n * 4};
  ok(d.launch(s, kernels::OpCode::kCopy, &args, sizeof args));
}

inline std::vector<float> read(CudaDevice& d, const Memory& m, int64_t n) {
  std::vector<float> out(static_cast<size_t>(n));
  copy(d, nullptr, out.data(), m.data(), n);
  return out;
}

inline int64_t wrong(const std::vector<float>& values, float expected) {
  int64_t bad = 0;
  for (float v : values) bad += v != expected;
  return bad;
}

constexpr int64_t kN = 10'007;  // no multiple of anything

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

}  // namespace aliquot::cuda_test
