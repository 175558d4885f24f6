// The kernels of the example model for the host.  The stand-in for the driver
// loads this (ALIQUOT_DOUBLE_KERNELS), and it adds them there by name.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "cuda/args.h"
#include "doubles/cuda_shim/launch.h"
#include "number.h"

namespace gpt::cuda {

#define GPT_DECLARE(name, Args, kind)                \
  extern "C" void gpt_##name##_f64(const Args args); \
  extern "C" void gpt_##name##_f32(const Args args); \
  extern "C" void gpt_##name##_bf16(const Args args);
GPT_KERNELS(GPT_DECLARE)
#undef GPT_DECLARE

namespace {

using Run = void (*)(void**, uint32_t, uint32_t, uint32_t);
using Add = void (*)(const char*, Run, size_t);

[[gnu::constructor]] void add_all() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
  auto add = driver == nullptr
                 ? nullptr
                 : reinterpret_cast<Add>(dlsym(driver, "double_add_kernel"));
  if (add == nullptr) {
    std::fprintf(stderr, "double: these kernels are for the stand-in alone\n");
    return;
  }
  const char* seed = std::getenv("ALIQUOT_DOUBLE_SEED");
  if (seed != nullptr) shim::seed.store(std::strtoull(seed, nullptr, 10));
#define GPT_ADD_OF(name, type, Args, kind) \
  add("gpt_" #name "_" #type,              \
      &shim::launch<Args, &gpt_##name##_##type, shim::kind>, sizeof(Args));
#define GPT_ADD(name, Args, kind)   \
  GPT_ADD_OF(name, f64, Args, kind) \
  GPT_ADD_OF(name, f32, Args, kind) \
  GPT_ADD_OF(name, bf16, Args, kind)
  GPT_KERNELS(GPT_ADD)
}

}  // namespace
}  // namespace gpt::cuda
