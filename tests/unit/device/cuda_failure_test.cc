// The CUDA device over the stand-in for the driver: the caller's streams,
// errors, and what it tells about itself.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/unit/device/cuda_fixture.h"

using namespace aliquot;             // NOLINT
using namespace aliquot::cuda_test;  // NOLINT

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

// The driver would read beyond what was cut.
BOOST_FIXTURE_TEST_CASE(images_are_whole_files, Fixture) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / "aliquot-image-").string() +
      std::to_string(getpid());
  std::filesystem::create_directories(folder);
  auto open = [&](const std::string& path) {
    auto context = make_context();
    context->cuda_image = path;
    return CudaDevice::open(context, 0).status();
  };
  auto with_bytes = [&](const std::string& bytes) {
    std::ofstream(folder + "/image", std::ios::binary) << bytes;
    return open(folder + "/image");
  };
  std::string fatbin("\x50\xed\x55\xba\x01\0\x10\0\x40\0\0\0\0\0\0\0", 16);
  ok(with_bytes(fatbin + std::string(64, 'x')));
  BOOST_TEST(with_bytes(fatbin + std::string(63, 'x')).code() ==
             ALQ_INVALID_ARGUMENT);
  BOOST_TEST(with_bytes(fatbin.substr(0, 9)).code() == ALQ_INVALID_ARGUMENT);
  BOOST_TEST(with_bytes("\177ELF").code() == ALQ_INVALID_ARGUMENT);
  BOOST_TEST(with_bytes(std::string(8, '\0')).code() == ALQ_INVALID_ARGUMENT);
  BOOST_TEST(with_bytes("a text, but no PTX").code() == ALQ_UNAVAILABLE);
  ok(with_bytes("// PTX"));
  BOOST_TEST(with_bytes("").code() == ALQ_NOT_FOUND);
  const std::string pipe = folder + "/pipe";
  BOOST_REQUIRE_EQUAL(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path :
       {std::string("/dev/zero"), pipe, folder, folder + "/nothing"}) {
    BOOST_TEST_INFO(path);
    BOOST_TEST(open(path).code() == ALQ_NOT_FOUND);
  }
  std::filesystem::remove_all(folder);
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
