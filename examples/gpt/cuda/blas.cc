#include "cuda/blas.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "error.h"

namespace gpt::cuda {
namespace {

const char* const kNames[] = {"libcublas.so.13", "libcublas.so.12"};

// Collects why nothing was found.
class Search {
 public:
  void* try_open(const std::string& path, int flags = 0) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
    if (library != nullptr) return library;
    if ((flags & RTLD_NOLOAD) == 0) {
      tried_ += fmt::format("; {}: {}", path, dlerror());
    }
    return nullptr;
  }
  const std::string& tried() const { return tried_; }

 private:
  std::string tried_;
};

void* find_in_dirs(Search* search, const std::string& dirs) {
  for (size_t at = 0; at < dirs.size();) {
    const size_t end = std::min(dirs.find(':', at), dirs.size());
    for (const char* name : kNames) {
      const std::string path = dirs.substr(at, end - at) + "/" + name;
      if (void* library = search->try_open(path)) return library;
    }
    at = end + 1;
  }
  return nullptr;
}

void* find_library() {
  Search search;
  const std::string exact = hint("cublas_library");
  void* found = exact.empty() ? nullptr : search.try_open(exact);
  for (const int flags : {RTLD_NOLOAD, 0}) {
    for (const char* name : kNames) {
      if (found == nullptr && exact.empty()) {
        found = search.try_open(name, flags);
      }
    }
  }
  if (found == nullptr && exact.empty()) {
    found = find_in_dirs(&search, hint("library_dirs"));
  }
  if (found != nullptr) return found;
  throw Error(fmt::format(
      "UNAVAILABLE: --device cuda needs cuBLAS 12 or 13 for matrix products "
      "(ALIQUOT_HINTS=cublas_library=PATH names it){}",
      search.tried()));
}

template <class F>
void resolve(void* library, const char* name, F*& into) {
  into = reinterpret_cast<F*>(dlsym(library, name));
  if (into == nullptr) {
    throw Error(fmt::format("UNAVAILABLE: cuBLAS has no {}", name));
  }
}

// cudaDataType_t and cublasComputeType_t
int32_t data_type(Type type) {
  switch (type) {
    case Type::kF64: return 1;
    case Type::kF32: return 0;
    case Type::kBf16: return 14;
  }
  return -1;
}

}  // namespace

Blas::Blas() : library_(find_library()) {
  resolve(library_, "cublasCreate_v2", create_);
  resolve(library_, "cublasDestroy_v2", destroy_);
  resolve(library_, "cublasSetStream_v2", set_stream_);
  resolve(library_, "cublasSetWorkspace_v2", set_workspace_);
  resolve(library_, "cublasGetStatusString", text_);
  resolve(library_, "cublasGemmEx", gemm_);
}

Blas::~Blas() {
  if (handle_ != nullptr) destroy_(handle_);
}

void Blas::check(int32_t status, const char* call) const {
  if (status == 0) return;
  throw Error(fmt::format("{}: {} ({})", call, text_(status), status));
}

void Blas::start(void* stream, void* workspace, size_t bytes) {
  check(create_(&handle_), "cublasCreate");
  check(set_stream_(handle_, stream), "cublasSetStream");
  check(set_workspace_(handle_, workspace, bytes), "cublasSetWorkspace");
}

// Row-major C = A B is column-major C' = B' A'.
void Blas::multiply(const Product& p) const {
  constexpr int32_t kCompute32 = 68, kCompute64 = 70, kDefaultAlgorithm = -1;
  const bool wide = p.in == Type::kF64;
  const auto alpha = static_cast<float>(p.alpha);
  const auto beta = static_cast<float>(p.beta);
  const void* factor = &alpha;
  const void* old = &beta;
  if (wide) {
    factor = &p.alpha;
    old = &p.beta;
  }
  check(gemm_(handle_, p.b.flipped ? 1 : 0, p.a.flipped ? 1 : 0,
              static_cast<int>(p.cols), static_cast<int>(p.rows),
              static_cast<int>(p.inner), factor, p.b.data, data_type(p.in),
              static_cast<int>(p.b.ld), p.a.data, data_type(p.in),
              static_cast<int>(p.a.ld), old, p.c, data_type(p.out),
              static_cast<int>(p.ld), wide ? kCompute64 : kCompute32,
              kDefaultAlgorithm),
        "cublasGemmEx");
}

}  // namespace gpt::cuda
