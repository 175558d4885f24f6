// aliquot.hpp: the C ABI as move-only C++20 objects.  Header only, no state of
// its own: whatever it does can be done with aliquot.h, whose comments are the
// contract; a failed call throws alq::error.
//
//   alq::context ctx = alq::context::open();
//   alq::group world = ctx.world();
//   std::vector<float> x(1024, 1.0f);
//   world.all_reduce(std::span(x));
//   ctx.close();
//
// Destructors release (local, never block); close() is the orderly,
// collective end.  Objects may be destroyed in any order.
#pragma once

#include <aliquot/hpp/engine.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace alq {

// One rank.
class context {
 public:
  static context open(const alq_open_desc& d = desc<alq_open_desc>()) {
    alq_context* out = nullptr;
    detail::call(alq_open, uint32_t{ALQ_ABI_VERSION}, &d, &out);
    return context(out);
  }
  context(context&&) = default;
  context& operator=(context&&) = default;

  int32_t rank() const noexcept { return alq_context_rank(h_.get()); }
  int32_t size() const noexcept { return alq_context_size(h_.get()); }
  std::vector<std::byte> bootstrap_blob() {
    size_t need = 0;
    detail::call(alq_bootstrap_blob, h_.get(), static_cast<void*>(nullptr),
                 size_t{0}, &need);
    std::vector<std::byte> out(need);
    detail::call(alq_bootstrap_blob, h_.get(), static_cast<void*>(out.data()),
                 out.size(), &need);
    return out;
  }
  // All ranks' blobs in rank order, each of blob_bytes bytes.
  void connect(std::span<const std::byte> blobs, size_t blob_bytes,
               int64_t timeout_ns = 0) {
    detail::call(alq_connect, h_.get(), static_cast<const void*>(blobs.data()),
                 blob_bytes, timeout_ns);
  }
  void close(int64_t timeout_ns = 0) {
    detail::call(alq_close, h_.get(), timeout_ns);
  }
  void abort(const char* reason) { detail::call(alq_abort, h_.get(), reason); }
  std::string runtime_info() const {
    return detail::text(alq_runtime_info, h_.get());
  }
  // The oldest log line, taken out of the ring; "" when there is none.
  std::string log_read() { return detail::text(alq_log_read, h_.get()); }
  void fault_set(const char* spec) {
    detail::call(alq_fault_set, h_.get(), spec);
  }
  // Advances queued operations; true while some remain.
  bool poll() {
    int32_t busy = 0;
    detail::call(alq_poll, h_.get(), &busy);
    return busy != 0;
  }

  group world() {
    alq_group* out = nullptr;
    detail::call(alq_group_world, h_.get(), &out);
    return group(out);
  }
  alq::stream make_stream() { return alq::stream(h_); }
  alq::event make_event() { return alq::event(h_.get()); }
  alq::buffer make_buffer(int64_t bytes) {
    return alq::buffer(h_.get(), bytes);
  }
  alq::mesh make_mesh(const char* spec = "") {
    return alq::mesh(h_.get(), spec);
  }
  alq_context* get() const noexcept { return h_.get(); }

 private:
  explicit context(alq_context* handle) : h_(handle, alq_release) {}
  // Shared with the streams, whose release needs it.
  std::shared_ptr<alq_context> h_;
};

}  // namespace alq
