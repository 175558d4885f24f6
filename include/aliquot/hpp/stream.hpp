// Streams, events, works and shared buffers of aliquot.hpp.
#pragma once

#include <aliquot/hpp/base.hpp>
#include <cstdint>
#include <span>
#include <utility>

namespace alq {

// A CPU stream.  Keeps its context's handle.
class stream {
 public:
  explicit stream(std::shared_ptr<alq_context> ctx) : ctx_(std::move(ctx)) {
    detail::call(alq_stream_create, ctx_.get(), &raw_);
  }
  stream(stream&& other) noexcept
      : ctx_(std::move(other.ctx_)), raw_(std::exchange(other.raw_, {})) {}
  stream& operator=(stream&& other) noexcept {
    std::swap(ctx_, other.ctx_);
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~stream() {
    if (ctx_) alq_stream_release(ctx_.get(), &raw_);
  }
  void sync(int64_t timeout_ns = 0) const {
    detail::call(alq_stream_sync, ctx_.get(), &raw_, timeout_ns);
  }
  const alq_stream* get() const noexcept { return &raw_; }

 private:
  std::shared_ptr<alq_context> ctx_;
  alq_stream raw_{};
};

class event {
 public:
  explicit event(alq_context* ctx)
      : h_(detail::make<owned>(alq_event_create, ctx)) {}
  void record(const stream& s) {
    detail::call(alq_event_record, h_.get(), s.get());
  }
  void wait(const stream& s) const {
    detail::call(alq_event_wait, h_.get(), s.get());
  }
  void sync(int64_t timeout_ns = 0) const {
    detail::call(alq_event_sync, h_.get(), timeout_ns);
  }
  bool done() const {
    int32_t done = 0;
    detail::call(alq_event_query, h_.get(), &done);
    return done != 0;
  }
  alq_event* get() const noexcept { return h_.get(); }

 private:
  using owned = detail::owned<alq_event, alq_event_release>;
  owned h_;
};

class work {
 public:
  explicit work(alq_work* handle = nullptr) : h_(handle) {}
  void wait(int64_t timeout_ns = 0) {
    detail::call(alq_work_wait, h_.get(), timeout_ns);
  }
  bool done() const {
    int32_t done = 0;
    detail::call(alq_work_query, h_.get(), &done);
    return done != 0;
  }
  alq_work* get() const noexcept { return h_.get(); }

 private:
  detail::owned<alq_work, alq_work_release> h_;
};

// Memory that the host's other ranks can read in place.
class buffer {
 public:
  buffer(alq_context* ctx, int64_t bytes)
      : h_(detail::make<owned>(alq_buffer_alloc, ctx, bytes)) {}
  void* data() const noexcept { return alq_buffer_data(h_.get()); }
  int64_t bytes() const noexcept { return alq_buffer_bytes(h_.get()); }
  template <typename T>
  std::span<T> as() const noexcept {
    return {static_cast<T*>(data()), static_cast<size_t>(bytes()) / sizeof(T)};
  }
  alq_buffer* get() const noexcept { return h_.get(); }

 private:
  using owned = detail::owned<alq_buffer, alq_buffer_release>;
  owned h_;
};

}  // namespace alq
