// The norm against a sum in long double, and the first element that is not
// finite.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "bench_gpu.h"

namespace aliquot::gpu {
namespace {

using kernels::NormBins;
using kernels::OpCode;

constexpr Dtype kFloats[] = {ALQ_F64, ALQ_F32, ALQ_F16, ALQ_BF16};
constexpr int64_t kCount = 70001;
constexpr int64_t kBase = 1000;

// T in memory of the GPU, as it is then.
template <typename T>
class Cell {
 public:
  Cell(Machine& m, const T& start) : machine_(m) {
    memory_ = need(m.device->allocate(sizeof(T), "cell"), "allocate");
    m.run(OpCode::kCopy, kernels::CopyArgs{memory_->data(), &start, sizeof(T)});
  }
  T* get() { return reinterpret_cast<T*>(memory_->data()); }
  T value() {
    T out;
    machine_.run(OpCode::kCopy,
                 kernels::CopyArgs{&out, memory_->data(), sizeof(T)});
    return out;
  }

 private:
  Machine& machine_;
  std::unique_ptr<Memory> memory_;
};

void check_norm(Machine& m, Dtype dtype) {
  std::mt19937_64 rng(21);
  Array x(m, dtype, kCount, 1);
  x.fill(rng, 1);
  Cell<NormBins> bins(m, NormBins{});
  NormBins host = {};
  m.run(OpCode::kNorm,
        kernels::NormArgs{bins.get(), x.device(), kCount, dtype, 0, kBase});
  kernels::NormArgs on_host = {&host, x.host(), kCount, dtype, 0, kBase};
  kernels::run_cpu(OpCode::kNorm, &on_host);
  long double sum = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const long double value = x.before(i);
    sum += value * value;
  }
  const NormBins got = bins.value();
  const auto want = static_cast<double>(sum);
  const double error = std::abs(kernels::norm_value(got) - want) / want;
  Json figures = Json::object();
  figures["relative_error"] = error;
  figures["equal_bits_to_cpu"] = std::memcmp(&got, &host, sizeof host) == 0;
  const std::string name = fmt::format("norm {}", dtype_name(dtype));
  if (!(error <= 1e-14)) {
    m.report.failed(name, fmt::format("relative error {}", error), figures);
  } else if (std::memcmp(&got, &host, sizeof host) != 0) {
    m.report.failed(name, "bins differ from the CPU's", figures);
  } else {
    m.report.ok(name, figures);
  }
}

void check_finite(Machine& m, Dtype dtype) {
  std::mt19937_64 rng(22);
  Array x(m, dtype, kCount, 1);
  bool good = true;
  for (int64_t at : {int64_t{-1}, int64_t{0}, int64_t{4711}, kCount - 1}) {
    std::vector<double> values(static_cast<size_t>(kCount), 1.5);
    for (int64_t i = at; i >= 0 && i < kCount; i += 997) {
      values[static_cast<size_t>(i)] =
          i % 2 == 0 ? std::numeric_limits<double>::infinity()
                     : std::numeric_limits<double>::quiet_NaN();
    }
    x.fill(values);
    Cell<int64_t> first(m, -1);
    m.run(OpCode::kFinite, kernels::FiniteArgs{first.get(), x.device(), kCount,
                                               dtype, 0, kBase});
    good = good && first.value() == (at < 0 ? -1 : kBase + at);
  }
  const std::string name = fmt::format("finite {}", dtype_name(dtype));
  if (good) return m.report.ok(name);
  m.report.failed(name, "another element is said to be the first");
}

}  // namespace

void check_sums(Machine& m) {
  for (Dtype dtype : kFloats) {
    check_norm(m, dtype);
    check_finite(m, dtype);
  }
}

}  // namespace aliquot::gpu
