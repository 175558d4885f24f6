#include "cuda/gpu.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "cuda/blas.h"
#include "cuda/image.h"
#include "error.h"

namespace gpt::cuda {

// The driver API by its documented ABI.
#define GPT_DRIVER(X)                                                     \
  X(error_name, cuGetErrorName, (int32_t, const char**))                  \
  X(device_get, cuDeviceGet, (int32_t*, int32_t))                         \
  X(device_attribute, cuDeviceGetAttribute, (int32_t*, int32_t, int32_t)) \
  X(retain, cuDevicePrimaryCtxRetain, (void**, int32_t))                  \
  X(release, cuDevicePrimaryCtxRelease_v2, (int32_t))                     \
  X(set_current, cuCtxSetCurrent, (void*))                                \
  X(alloc, cuMemAlloc_v2, (uint64_t*, size_t))                            \
  X(free, cuMemFree_v2, (uint64_t))                                       \
  X(host_alloc, cuMemHostAlloc, (void**, size_t, unsigned))               \
  X(host_free, cuMemFreeHost, (void*))                                    \
  X(set_bytes, cuMemsetD8Async, (uint64_t, unsigned char, size_t, void*)) \
  X(copy, cuMemcpyAsync, (uint64_t, uint64_t, size_t, void*))             \
  X(module_load, cuModuleLoadData, (void**, const void*))                 \
  X(module_unload, cuModuleUnload, (void*))                               \
  X(module_function, cuModuleGetFunction, (void**, void*, const char*))   \
  X(launch, cuLaunchKernel,                                               \
    (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,   \
     unsigned, void*, void**, void**))

struct Driver {
#define GPT_MEMBER(member, name, parameters) \
  int32_t(*member) parameters = nullptr;
  GPT_DRIVER(GPT_MEMBER)
#undef GPT_MEMBER
  int32_t device = 0;
  void* context = nullptr;

  explicit Driver(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      throw Error(fmt::format("UNAVAILABLE: {}", dlerror()));
    }
#define GPT_RESOLVE(member, name, parameters)                         \
  member = reinterpret_cast<decltype(member)>(dlsym(library, #name)); \
  if (member == nullptr) {                                            \
    throw Error(fmt::format("UNAVAILABLE: {} has no " #name, path));  \
  }
    GPT_DRIVER(GPT_RESOLVE)
#undef GPT_RESOLVE
  }
};

namespace {

constexpr int32_t kProcessors = 16;              // CU_DEVICE_ATTRIBUTE_...
constexpr size_t kWorkspace = size_t{32} << 20;  // for cuBLAS
constexpr int64_t kTypes = 3;

uint64_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }

// The built-in kernels, or those of the file GPT_CUDA_IMAGE.
std::vector<char> load_image() {
  const char* path = std::getenv("GPT_CUDA_IMAGE");
  if (path != nullptr) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    if (bytes.empty()) {
      throw Error(fmt::format("GPT_CUDA_IMAGE={}: no readable file", path));
    }
    bytes.push_back(0);
    return bytes;
  }
  const Image image = built_in_image();
  if (image.bytes == 0) {
    throw Error(
        "UNAVAILABLE: gpt was built without nvcc and has no GPU kernels; build "
        "it again after scripts/setup --with cuda");
  }
  const auto* begin = static_cast<const char*>(image.data);
  return {begin, begin + image.bytes};
}

}  // namespace

std::string hint(const std::string& key) {
  const char* all = std::getenv("ALIQUOT_HINTS");
  const std::string text = fmt::format(";{};", all == nullptr ? "" : all);
  const std::string begin = fmt::format(";{}=", key);
  const size_t at = text.find(begin);
  if (at == std::string::npos) return "";
  const size_t from = at + begin.size();
  return text.substr(from, text.find(';', from) - from);
}

Gpu::Gpu(Place place) : place_(std::move(place)) {
  driver_ = std::make_unique<Driver>(place_.driver);
  check(driver_->device_get(&driver_->device, place_.device), "cuDeviceGet");
  int32_t processors = 1;
  check(driver_->device_attribute(&processors, kProcessors, driver_->device),
        "cuDeviceGetAttribute");
  processors_ = static_cast<uint32_t>(processors);
  check(driver_->retain(&driver_->context, driver_->device),
        "cuDevicePrimaryCtxRetain");
  check(driver_->set_current(driver_->context), "cuCtxSetCurrent");
  load_kernels();
  blas_ = std::make_unique<Blas>();
  blas_->start(place_.stream, allocate(kWorkspace), kWorkspace);
}

Gpu::~Gpu() {
  try {
    wait();
  } catch (const Error&) {
    return;  // what may still be in use is left to the end of the process
  }
  blas_.reset();
  for (const uint64_t block : blocks_) driver_->free(block);
  for (void* block : pinned_) driver_->host_free(block);
  if (module_ != nullptr) driver_->module_unload(module_);
  driver_->set_current(nullptr);
  driver_->release(driver_->device);
}

void Gpu::check(int32_t result, const char* call) const {
  if (result == 0) return;
  const char* name = nullptr;
  driver_->error_name(result, &name);
  throw Error(fmt::format("CUDA device {}: {} returned {} ({})", place_.device,
                          call, name == nullptr ? "?" : name, result));
}

void Gpu::load_kernels() {
  const std::vector<char> image = load_image();
  check(driver_->module_load(&module_, image.data()), "cuModuleLoadData");
  const auto add = [this](const char* name) {
    void* function = nullptr;
    check(driver_->module_function(&function, module_, name), name);
    functions_.push_back(function);
  };
#define GPT_FIND(name, args, kind) \
  add("gpt_" #name "_f64");        \
  add("gpt_" #name "_f32");        \
  add("gpt_" #name "_bf16");
  GPT_KERNELS(GPT_FIND)
#undef GPT_FIND
}

void* Gpu::allocate(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes == 0 ? 1 : bytes);
  uint64_t block = 0;
  check(driver_->alloc(&block, size), "cuMemAlloc");
  blocks_.push_back(block);
  bytes_ += bytes;
  auto* at = reinterpret_cast<void*>(block);
  zero(bytes, at);
  return at;
}

uint8_t* Gpu::pinned(int64_t bytes) {
  void* block = nullptr;
  check(driver_->host_alloc(&block, static_cast<size_t>(bytes), 0),
        "cuMemHostAlloc");
  pinned_.push_back(block);
  return static_cast<uint8_t*>(block);
}

void Gpu::copy(const void* from, int64_t bytes, void* to) {
  check(driver_->copy(address(to), address(from), static_cast<size_t>(bytes),
                      place_.stream),
        "cuMemcpyAsync");
}

void Gpu::zero(int64_t bytes, void* at) {
  check(driver_->set_bytes(address(at), 0, static_cast<size_t>(bytes),
                           place_.stream),
        "cuMemsetD8Async");
}

void Gpu::launch(Kernel kernel, Type type, const void* args, int64_t blocks) {
  const int64_t at =
      static_cast<int64_t>(kernel) * kTypes + static_cast<int64_t>(type);
  void* parameters[] = {const_cast<void*>(args)};
  check(driver_->launch(functions_[static_cast<size_t>(at)],
                        static_cast<unsigned>(blocks), 1, 1, kBlock, 1, 1, 0,
                        place_.stream, parameters, nullptr),
        "cuLaunchKernel");
}

void Gpu::multiply(const Product& product) { blas_->multiply(product); }

}  // namespace gpt::cuda
