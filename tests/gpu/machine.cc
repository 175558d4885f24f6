#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "bench_gpu.h"

namespace aliquot::gpu {

void need(const Status& status, const char* what) {
  if (status.ok()) return;
  Report().failed(what, status.message());
  std::exit(2);
}

void Report::line(const std::string& check, const char* status,
                  const std::string& why, Json figures) {
  Json j = Json::object();
  j["check"] = check;
  j["status"] = status;
  j["why"] = why;
  for (const auto& [key, value] : figures.members()) j[key] = value;
  std::puts(j.dump().c_str());
  std::fflush(stdout);
}

void Report::ok(const std::string& check, Json figures) {
  line(check, "ok", "", std::move(figures));
}
void Report::failed(const std::string& check, const std::string& why,
                    Json figures) {
  ++failures_;
  line(check, "FAILED", why, std::move(figures));
}
void Report::skipped(const std::string& check, const std::string& why) {
  line(check, "SKIPPED", why, Json::object());
}

std::string hint(const std::string& key) {
  const char* all = std::getenv("ALIQUOT_HINTS");
  const std::string text = fmt::format(";{};", all == nullptr ? "" : all);
  const size_t at = text.find(fmt::format(";{}=", key));
  if (at == std::string::npos) return "";
  const size_t from = at + key.size() + 2;
  return text.substr(from, text.find(';', from) - from);
}

Machine open_machine() {
  Machine m;
  m.context = std::make_shared<Context>(0, 1);
  m.context->timeout_ns = 60'000'000'000;
  if (const std::string path = hint("cuda_library"); !path.empty()) {
    m.context->library_paths["cuda"] = path;
  }
  m.context->cuda_image = hint("cuda_image");
  m.device = need(CudaDevice::open(m.context, 0), "open device 0");
  const Json info = m.device->info();
  m.stand_in = info.at("name").as_string().starts_with("double");
  m.report.ok("device", info);
  return m;
}

namespace {

// The CPU's cast is the reference for how doubles become elements.
void cast(void* dst, Dtype to, const void* src, Dtype from, int64_t count) {
  kernels::CastArgs args = {dst, src, count, to, from, 1};
  kernels::run_cpu(kernels::OpCode::kCast, &args);
}

}  // namespace

Array::Array(Machine& machine, Dtype dtype, int64_t count, int64_t off)
    : machine_(machine),
      dtype_(dtype),
      count_(count),
      begin_(static_cast<size_t>(off * dtype_size(dtype))),
      host_(begin_ + static_cast<size_t>(count * dtype_size(dtype))) {
  memory_ =
      need(machine.device->allocate(static_cast<int64_t>(host_.size()), "test"),
           "allocate");
  send();
}

void Array::fill(const std::vector<double>& values) {
  cast(host(), dtype_, values.data(), ALQ_F64, count_);
  send();
}

void Array::fill(std::mt19937_64& rng, double scale, bool positive) {
  std::normal_distribution<double> normal(0, scale);
  std::vector<double> values(static_cast<size_t>(count_));
  for (double& x : values) x = positive ? std::abs(normal(rng)) : normal(rng);
  fill(values);
}

void Array::send() {
  before_.resize(static_cast<size_t>(count_));
  for (int64_t i = 0; i < count_; ++i) {
    before_[static_cast<size_t>(i)] = of_host(i);
  }
  machine_.run(kernels::OpCode::kCopy,
               kernels::CopyArgs{memory_->data(), host_.data(),
                                 static_cast<int64_t>(host_.size())});
}

void Array::fetch() {
  got_.resize(host_.size());
  machine_.run(kernels::OpCode::kCopy,
               kernels::CopyArgs{got_.data(), memory_->data(),
                                 static_cast<int64_t>(got_.size())});
}

double Array::at(const std::vector<std::byte>& bytes, int64_t i) const {
  double x = 0;
  const std::byte* from =
      bytes.data() + begin_ + static_cast<size_t>(i * dtype_size(dtype_));
  if (is_float(dtype_)) {
    cast(&x, ALQ_F64, from, dtype_, 1);
    return x;
  }
  return static_cast<double>(std::to_integer<int>(*from));
}

double half_ulp(Dtype dtype) {
  switch (dtype) {
    case ALQ_F64: return 0x1p-53;
    case ALQ_F32: return 0x1p-24;
    case ALQ_F16: return 0x1p-11;
    default: return 0x1p-8;
  }
}

double worst(const Array& array, const std::function<double(int64_t)>& want,
             const std::function<double(int64_t)>& size) {
  // Below the normal numbers the distance of neighbours stays what it is.
  const double least = array.dtype() == ALQ_F64   ? 0x1p-1022
                       : array.dtype() == ALQ_F16 ? 0x1p-14
                                                  : 0x1p-126;
  double most = 0;
  for (int64_t i = 0; i < array.count(); ++i) {
    const double error = std::abs(array.of_gpu(i) - want(i));
    const double unit = half_ulp(array.dtype()) * std::max(size(i), least);
    const double now = error / unit;
    if (!(now <= most)) most = now;
    if (std::isnan(most)) return most;
  }
  return most;
}

}  // namespace aliquot::gpu
