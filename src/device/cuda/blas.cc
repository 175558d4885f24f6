#include "device/cuda/blas.h"

#include <climits>

namespace aliquot {
namespace {

constexpr const char* kName = "cublas";
// What NVIDIA advises for sm_90; smaller cards use less of it.
constexpr int64_t kWorkspace = int64_t{32} << 20;

template <typename F>
Status resolve(LibrarySet& libraries, const char* symbol, F*& into) {
  auto address = libraries.symbol(kName, symbol);
  if (!address.ok()) {
    return make_error(ALQ_UNAVAILABLE, "{}", address.status().message());
  }
  into = reinterpret_cast<F*>(*address);
  return {};
}

Result<blas::DataType> data_type(Dtype dtype) {
  switch (dtype) {
    case ALQ_F64: return blas::kF64;
    case ALQ_F32: return blas::kF32;
    case ALQ_F16: return blas::kF16;
    case ALQ_BF16: return blas::kBf16;
    default:
      return make_error(ALQ_INVALID_ARGUMENT, "no matrix product of {}",
                        dtype_name(dtype));
  }
}

int64_t rows_of(const BlasOperand& m) { return m.flipped ? m.cols : m.rows; }
int64_t cols_of(const BlasOperand& m) { return m.flipped ? m.rows : m.cols; }

Status check(const BlasProduct& p) {
  bool shapes = rows_of(p.a) == p.rows && cols_of(p.b) == p.cols &&
                cols_of(p.a) == rows_of(p.b);
  bool strides = p.a.ld >= p.a.cols && p.b.ld >= p.b.cols && p.ld >= p.cols;
  bool fits = true;
  for (int64_t n : {p.a.rows, p.a.cols, p.a.ld, p.b.rows, p.b.cols, p.b.ld,
                    p.rows, p.cols, p.ld}) {
    fits = fits && n >= 0 && n <= INT_MAX;
  }
  if (!shapes || !strides || !fits) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "matrix product: {} x {} (row stride {}) = {} x {} ({}) "
                      "times {} x {} ({}) does not fit",
                      p.rows, p.cols, p.ld, rows_of(p.a), cols_of(p.a), p.a.ld,
                      rows_of(p.b), cols_of(p.b), p.b.ld);
  }
  bool wide = (p.in == ALQ_F64) == (p.out == ALQ_F64);
  bool narrows = p.in == ALQ_F32 && p.out != ALQ_F32;
  bool crosses = p.in != p.out && p.out != ALQ_F32 && p.out != ALQ_F64;
  if (!wide || narrows || crosses) {
    return make_error(ALQ_UNSUPPORTED,
                      "matrix product of {} into {}: the result is of the "
                      "operands' dtype or f32",
                      dtype_name(p.in), dtype_name(p.out));
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<Blas>> Blas::open(std::shared_ptr<Context> context,
                                         std::shared_ptr<Device> device) {
  auto* port = dynamic_cast<CudaPort*>(device.get());
  if (port == nullptr) {
    return make_error(ALQ_FAILED_PRECONDITION, "cuBLAS needs a CUDA device");
  }
  std::shared_ptr<Blas> blas(
      new Blas(std::move(context), std::move(device), *port));
  ALQ_TRY(blas->load());
  return blas;
}

Status Blas::load() {
  LibrarySet& set = port_.libraries();
  LibrarySpec spec;
  spec.name = kName;
  spec.sonames = {"libcublas.so.13", "libcublas.so.12"};
  spec.hint_dirs = port_.library_dirs();
  auto path = context_->library_paths.find(kName);
  if (path != context_->library_paths.end()) spec.override_path = path->second;
  auto opened = set.open(spec);
  if (!opened.ok()) {
    return make_error(ALQ_UNAVAILABLE,
                      "matrix products on CUDA need cuBLAS 12 or 13: {}",
                      opened.status().message());
  }
  ALQ_TRY(resolve(set, "cublasCreate_v2", api_.create));
  ALQ_TRY(resolve(set, "cublasDestroy_v2", api_.destroy));
  ALQ_TRY(resolve(set, "cublasGetVersion_v2", api_.get_version));
  ALQ_TRY(resolve(set, "cublasSetStream_v2", api_.set_stream));
  ALQ_TRY(resolve(set, "cublasSetWorkspace_v2", api_.set_workspace));
  ALQ_TRY(resolve(set, "cublasGetStatusString", api_.status_string));
  return resolve(set, "cublasGemmEx", api_.gemm);
}

Blas::~Blas() {
  // Destroying a handle needs the device's context.
  if (streams_.empty()) return;
  CudaBound bound(port_);
  if (!bound.status().ok()) return;
  for (auto& [stream, own] : streams_) {
    static_cast<void>(api_.destroy(own.handle));
  }
}

Status Blas::error(const char* what, int32_t result) const {
  return make_error(result == blas::kAllocFailed ? ALQ_RESOURCE_EXHAUSTED
                                                 : ALQ_INTERNAL,
                    "{}: {} ({})", what, api_.status_string(result), result)
      .with_native(ALQ_DOMAIN_CUDA, result);
}

Result<blas::Handle> Blas::handle(Stream& stream) {
  void* raw = port_.native(stream);
  auto found = streams_.find(raw);
  if (found != streams_.end()) return found->second.handle;
  ALQ_ASSIGN(uint64_t capture, port_.capture(stream));
  if (capture != 0) {
    return make_error(ALQ_FAILED_PRECONDITION,
                      "the first matrix product on a stream allocates and can "
                      "not be captured; run it once before");
  }
  PerStream own;
  ALQ_ASSIGN(own.workspace, device_->allocate(kWorkspace, "cuBLAS"));
  int32_t result = api_.create(&own.handle);
  if (result != blas::kSuccess) return error("cublasCreate", result);
  // A new stream takes the workspace away, so it comes first.
  result = api_.set_stream(own.handle, raw);
  if (result == blas::kSuccess) {
    result = api_.set_workspace(own.handle, own.workspace->data(),
                                static_cast<size_t>(kWorkspace));
  }
  if (result != blas::kSuccess) {
    static_cast<void>(api_.destroy(own.handle));
    return error("cublasSetWorkspace", result);
  }
  int version = 0;
  if (streams_.empty() &&
      api_.get_version(own.handle, &version) == blas::kSuccess) {
    port_.libraries().set_version(
        kName, fmt::format("{}.{}.{}", version / 10000, version / 100 % 100,
                           version % 100));
  }
  blas::Handle made = own.handle;
  streams_[raw] = std::move(own);
  return made;
}

// Row-major C = A B is column-major C' = B' A'.
Status Blas::call(blas::Handle handle, const BlasProduct& p) {
  ALQ_ASSIGN(blas::DataType in, data_type(p.in));
  ALQ_ASSIGN(blas::DataType out, data_type(p.out));
  auto compute = p.in == ALQ_F64             ? blas::kCompute64
                 : p.tf32 && p.in == ALQ_F32 ? blas::kComputeTf32
                                             : blas::kCompute32;
  const auto alpha = static_cast<float>(p.alpha);
  const auto beta = static_cast<float>(p.beta);
  const bool wide = compute == blas::kCompute64;
  auto order = [](const BlasOperand& m) {
    return m.flipped ? blas::kTransposed : blas::kPlain;
  };
  auto n = [](int64_t count) { return static_cast<int>(count); };
  int32_t result = api_.gemm(
      handle, order(p.b), order(p.a), n(p.cols), n(p.rows), n(cols_of(p.a)),
      wide ? static_cast<const void*>(&p.alpha) : &alpha, p.b.data, in,
      n(p.b.ld), p.a.data, in, n(p.a.ld),
      wide ? static_cast<const void*>(&p.beta) : &beta, p.c, out, n(p.ld),
      compute, blas::kDefaultAlgorithm);
  return result == blas::kSuccess ? Status() : error("cublasGemmEx", result);
}

Status Blas::gemm(Stream* stream, const BlasProduct& product) {
  ALQ_TRY(check(product));
  if (product.rows == 0 || product.cols == 0) return {};
  Stream& on = stream == nullptr ? port_.internal_stream() : *stream;
  {
    std::lock_guard lock(mutex_);
    CudaBound bound(port_);
    ALQ_TRY(bound.status());
    ALQ_ASSIGN(blas::Handle own, handle(on));
    ALQ_TRY(call(own, product));
  }
  if (stream != nullptr) return {};
  return device_->synchronize(on, context_->deadline(0));
}

}  // namespace aliquot
