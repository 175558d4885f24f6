// Every call of the driver fails in turn: the error names the call, and all
// that was made is given back.
#include "tests/unit/device/cuda_fixture.h"

using namespace aliquot;             // NOLINT
using namespace aliquot::cuda_test;  // NOLINT

namespace {

// A device from its opening to its end, by way of everything it does.
Status whole_life() {
  ALQ_ASSIGN(auto device, CudaDevice::open(make_context(), 0));
  CudaDevice& d = *device;
  ALQ_ASSIGN(auto a, d.create_stream("a"));
  ALQ_ASSIGN(auto b, d.create_stream("b"));
  ALQ_ASSIGN(auto event, d.create_event());
  ALQ_ASSIGN(std::shared_ptr<Memory> x, d.allocate(4000, "x"));
  ALQ_ASSIGN(auto pinned, d.allocate_host(4000, "pinned"));
  alq_stream given = {ALQ_DEVICE_CUDA, 0, d.native(*a)};
  ALQ_ASSIGN(Stream * same, d.from_abi(&given));
  ALQ_TRY(d.check_waitable(*same));
  ALQ_TRY(d.identity(*same).status());
  auto args = fill_args(*x, 1000, 1);
  ALQ_TRY(d.launch(same, kernels::OpCode::kFill, &args, sizeof args));
  ALQ_TRY(d.record(*event, same));
  ALQ_TRY(d.wait(b.get(), *event, soon()));
  kernels::CopyArgs copy = {pinned->data(), x->data(), 4000};
  ALQ_TRY(d.launch(b.get(), kernels::OpCode::kCopy, &copy, sizeof copy));
  ALQ_TRY(d.pin(*b, x));
  x.reset();
  ALQ_TRY(d.synchronize(*b, soon()));
  CudaBound bound(d);
  ALQ_TRY(bound.status());
  return d.synchronize(*event, soon());
}

struct Live {
  int64_t bytes = double_live_bytes(), handles = double_live_handles();
  bool operator==(const Live&) const = default;
};

// A pinned block is let go of by a thread of its own.
bool all_given_back(const Live& before) {
  for (Deadline d = soon(); !d.passed();) {
    if (Live() == before) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// Fails the entry's first call, its second... until there is no such call.
// Returns how many there are.
int64_t fail_each(const char* entry, CUresult result, bool may_do_without) {
  for (int64_t n = 1;; ++n) {
    const Live before;
    double_fail_at(entry, n, result, is_sticky(result) ? 1 : 0);
    Status status = whole_life();
    BOOST_TEST_INFO(entry << ", call " << n << ": " << status.message());
    BOOST_TEST(all_given_back(before));
    if (double_unfail() == 1) {
      ok(status);
      return n - 1;
    }
    if (may_do_without) continue;
    BOOST_TEST_INFO(entry << ", call " << n << ": " << status.message());
    BOOST_TEST(!status.ok());
    BOOST_TEST_INFO(entry << ", call " << n << ": " << status.message());
    BOOST_TEST(status.message().find(entry) != std::string::npos);
  }
}

constexpr const char* kEntries[] = {
    "cuDriverGetVersion",   "cuInit",
    "cuDeviceGetCount",     "cuDeviceGet",
    "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain",
    "cuStreamCreate",       "cuStreamGetCtx",
    "cuStreamGetId",        "cuStreamGetCaptureInfo",
    "cuStreamWaitEvent",    "cuEventCreate",
    "cuEventRecord",        "cuMemAlloc",
    "cuMemHostAlloc",       "cuMemsetD8Async",
    "cuMemcpyAsync",        "cuModuleLoadData",
    "cuModuleGetFunction",  "cuLaunchKernel"};

}  // namespace

BOOST_FIXTURE_TEST_CASE(every_call_that_fails_is_named, Fixture) {
  double_delay_us(20);
  double_free_waits(1);
  for (const char* entry : kEntries) {
    BOOST_TEST_INFO(entry);
    BOOST_TEST(fail_each(entry, kUnknown, false) > 0);
  }
  // Those that tidy up or poll, and those that there is another way for.
  for (const char* entry :
       {"cuCtxPushCurrent", "cuEventQuery", "cuThreadExchangeStreamCaptureMode",
        "cuCtxGetCurrent"}) {
    BOOST_TEST_INFO(entry);
    BOOST_TEST(fail_each(entry, kUnknown, true) > 0);
  }
  BOOST_TEST(fail_each("cuGetProcAddress", kNotFound, true) > 30);
  double_free_waits(0);
}

// The context is of no use afterwards, until nobody holds it.
BOOST_AUTO_TEST_CASE(every_call_may_break_the_context) {
  double_delay_us(20);
  double_free_waits(1);
  for (const char* entry :
       {"cuStreamCreate", "cuStreamWaitEvent", "cuEventCreate", "cuEventRecord",
        "cuMemAlloc", "cuMemsetD8Async", "cuMemcpyAsync", "cuModuleLoadData",
        "cuLaunchKernel", "kernel"}) {
    BOOST_TEST_INFO(entry);
    BOOST_TEST(fail_each(entry, kLaunchFailed,
                         std::string_view(entry) == "kernel") > 0);
  }
  double_free_waits(0);
  double_delay_us(200);
  BOOST_TEST(double_violations() == 0);
}
