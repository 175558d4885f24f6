// One GPU as the model uses it: memory, kernels and cuBLAS on one stream.  The
// driver is the one that Aliquot has loaded; cuBLAS is loaded here.  Nothing is
// linked.  Every call enqueues, but for those that say otherwise; errors are
// thrown as Error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/args.h"

namespace gpt::cuda {

// Which one, and the stream of the driver that all work goes to.
struct Place {
  std::string driver;  // path of libcuda
  int32_t device = 0;
  void* stream = nullptr;
  // Waits for the stream, for a bounded time; throws Error.
  std::function<void()> wait;
};

enum class Kernel : int32_t {
#define GPT_KERNEL_ID(name, args, kind) k_##name,
  GPT_KERNELS(GPT_KERNEL_ID)
#undef GPT_KERNEL_ID
};

enum class Type : int32_t { kF64, kF32, kBf16 };

// Row-major; read as its transpose if flipped.
struct Operand {
  const void* data;
  int64_t ld;
  bool flipped;
};

struct Product {
  Operand a, b;
  void* c;
  int64_t rows, cols, inner, ld;  // of c; inner: what is summed over
  Type in, out;
  double alpha, beta;
};

struct Driver;
struct Blas;

class Gpu {
 public:
  explicit Gpu(Place place);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  void* allocate(int64_t bytes);   // zeroed, on the device
  uint8_t* pinned(int64_t bytes);  // of the host
  int64_t bytes() const { return bytes_; }
  uint32_t processors() const { return processors_; }

  void copy(const void* from, int64_t bytes, void* to);
  void zero(int64_t bytes, void* at);
  // args: the kernel's struct.
  void launch(Kernel kernel, Type type, const void* args, int64_t blocks);
  void multiply(const Product& product);
  void wait() const { place_.wait(); }

 private:
  void load_kernels();
  void check(int32_t result, const char* call) const;

  Place place_;
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<Blas> blas_;
  void* module_ = nullptr;
  std::vector<void*> functions_;  // by kernel and type
  std::vector<uint64_t> blocks_;
  std::vector<void*> pinned_;
  int64_t bytes_ = 0;
  uint32_t processors_ = 1;
};

// The value of a key in ALIQUOT_HINTS ("key=value;..."), or "".
std::string hint(const std::string& key);

}  // namespace gpt::cuda
