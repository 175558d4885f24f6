// Opening a CUDA device, and what is known about it.
#include "device/cuda/cuda_device.h"
#include "device/cuda/image_file.h"

namespace aliquot {

using namespace cuda;  // NOLINT: the driver's names

namespace {

// The hint's file, or what is built in.
Result<kernels::CudaImage> choose_image(const Context& context,
                                        std::vector<char>* file) {
  if (context.cuda_image.empty()) return kernels::cuda_image();
  ALQ_ASSIGN(*file, read_image(context.cuda_image));
  return kernels::CudaImage{file->data(), file->size()};
}

constexpr const char* kNoKernels =
    "this library has no GPU kernels: it was built without nvcc (build it "
    "after scripts/setup --with cuda, or name a file with the hint cuda_image)";

}  // namespace

Result<std::shared_ptr<CudaDevice>> CudaDevice::open(
    std::shared_ptr<Context> context, int32_t ordinal) {
  std::vector<char> file;
  ALQ_ASSIGN(kernels::CudaImage image, choose_image(*context, &file));
  auto driver = Driver::load(*context);
  if (!driver.ok()) {
    if (image.bytes != 0) return driver.status();
    return make_error(driver.status().code(), "{}; besides, {}",
                      driver.status().message(), kNoKernels);
  }
  ALQ_ASSIGN(std::shared_ptr<CudaCore> core, CudaCore::open(*driver, ordinal));
  if (image.bytes == 0) {
    return make_error(ALQ_UNAVAILABLE, "CUDA device {}: {}", ordinal,
                      kNoKernels);
  }
  int multiprocessors = 0;
  ALQ_TRY(core->check(
      core->api().device_attribute(&multiprocessors, kAttributeMultiprocessors,
                                   core->device()),
      "cuDeviceGetAttribute"));
  std::string source =
      context->cuda_image.empty() ? "built in" : context->cuda_image;
  std::shared_ptr<CudaDevice> device(
      new CudaDevice(std::move(context), std::move(core)));
  ALQ_ASSIGN(device->kernels_, KernelTable::load(device->core_, image));
  device->image_ = std::move(source);
  device->multiprocessors_ = multiprocessors;
  ALQ_TRY(device->measure_clock());
  return device;
}

// Of some readings the one that the host saw begin and end soonest.
Status CudaDevice::measure_clock() {
  constexpr int kReadings = 5;
  ALQ_ASSIGN(auto memory, allocate_host(sizeof(int64_t), "clock"));
  const auto* at = reinterpret_cast<const int64_t*>(memory->data());
  int64_t shortest = INT64_MAX, offset = 0;
  for (int k = 0; k < kReadings; ++k) {
    kernels::StampArgs args = {};
    args.at = reinterpret_cast<int64_t*>(memory->data());
    const int64_t before = now_ns();
    ALQ_TRY(launch(nullptr, kernels::OpCode::kStamp, &args, sizeof args));
    const int64_t took = now_ns() - before;
    if (took >= shortest) continue;
    shortest = took;
    offset = before + took / 2 - *at;
  }
  clock_offset_ = offset;
  return {};
}

Json CudaDevice::info() const {
  const Driver& api = core_->api();
  char name[128] = "?", pci[32] = "?";
  size_t bytes = 0;
  int major = 0, minor = 0;
  // What can not be asked is left as it is.
  api.device_name(name, sizeof name, core_->device());
  api.device_pci(pci, sizeof pci, core_->device());
  api.device_memory(&bytes, core_->device());
  api.device_attribute(&major, kAttributeCapabilityMajor, core_->device());
  api.device_attribute(&minor, kAttributeCapabilityMinor, core_->device());
  Json j = Json::object();
  j["id"] = ordinal();
  j["name"] = name;
  j["pci"] = pci;
  j["capability"] = fmt::format("{}.{}", major, minor);
  j["memory_bytes"] = static_cast<int64_t>(bytes);
  j["multiprocessors"] = multiprocessors_;
  j["driver"] = version_text(api.version);
  j["kernels"] = image_;
  return j;
}

}  // namespace aliquot
