// A GPU under test: the device, arrays on both sides, and what was found, one
// JSON object per line on standard output:
//   {"check": name, "status": "ok" | "FAILED" | "SKIPPED", "why": text, ...}
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "device/cuda/cuda_device.h"

namespace aliquot::gpu {

// Ends the program with what went wrong: without it nothing can be tested.
void need(const Status& status, const char* what);

template <typename T>
T need(Result<T> result, const char* what) {
  need(result.status(), what);
  return std::move(*result);
}

class Report {
 public:
  void ok(const std::string& check, Json figures = Json::object());
  void failed(const std::string& check, const std::string& why,
              Json figures = Json::object());
  void skipped(const std::string& check, const std::string& why);
  int failures() const { return failures_; }

 private:
  void line(const std::string& check, const char* status,
            const std::string& why, Json figures);
  int failures_ = 0;
};

struct Machine {
  std::shared_ptr<Context> context;
  std::shared_ptr<CudaDevice> device;
  bool stand_in = false;  // no GPU: its speed says nothing
  Report report;

  void run(kernels::OpCode op, const void* args, size_t bytes,
           Stream* stream = nullptr) {
    need(device->launch(stream, op, args, bytes), "launch");
  }
  template <typename Args>
  void run(kernels::OpCode op, const Args& args, Stream* stream = nullptr) {
    run(op, &args, sizeof args, stream);
  }
  void wait(Stream& stream) {
    need(device->synchronize(stream, context->deadline(0)), "synchronize");
  }
};

// Opens device 0; ALIQUOT_HINTS names libraries, as for alq_open.
Machine open_machine();
std::string hint(const std::string& key);

// The same elements for the host (the CPU's kernels) and the GPU.
class Array {
 public:
  // Elements begin `off` elements into the memory.
  Array(Machine& machine, Dtype dtype, int64_t count, int64_t off = 0);
  // Drawn values, sent to the GPU.
  void fill(std::mt19937_64& rng, double scale, bool positive = false);
  void fill(const std::vector<double>& values);
  void send();
  void fetch();  // into got

  void* host() { return host_.data() + begin_; }
  void* device() { return memory_->data() + begin_; }
  double of_host(int64_t i) const { return at(host_, i); }
  double of_gpu(int64_t i) const { return at(got_, i); }
  // What it was before the operation.
  double before(int64_t i) const { return before_[static_cast<size_t>(i)]; }
  // After fetch: are all bytes equal?
  bool equal_bits() const { return host_ == got_; }
  int64_t count() const { return count_; }
  Dtype dtype() const { return dtype_; }

 private:
  double at(const std::vector<std::byte>& bytes, int64_t i) const;

  Machine& machine_;
  Dtype dtype_;
  int64_t count_;
  size_t begin_;
  std::vector<std::byte> host_, got_;
  std::vector<double> before_;
  std::unique_ptr<Memory> memory_;
};

// 2^-p: half the distance of 1 to its neighbour.
double half_ulp(Dtype dtype);

// The largest |got - want(i)| / size(i), in half ulps of the array's dtype.
double worst(const Array& array, const std::function<double(int64_t)>& want,
             const std::function<double(int64_t)>& size);

void check_moves(Machine& machine);       // fill, copy, cast, accumulate
void check_optimizers(Machine& machine);  // AdamW, SGD
void check_sums(Machine& machine);        // norm, finite
void check_step(Machine& machine);        // rates, share, decide, stamp
void check_streams(Machine& machine);     // events, capture
// World of `ranks` threads on one GPU, through the library's ABI.
void check_nccl(Machine& machine, int32_t ranks);
void measure(Machine& machine);  // bandwidths

}  // namespace aliquot::gpu
