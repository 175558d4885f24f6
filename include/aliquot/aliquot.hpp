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
#ifndef ALIQUOT_ALIQUOT_HPP_
#define ALIQUOT_ALIQUOT_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "aliquot/aliquot.h"

namespace alq {

// A failed call.  rank is the world rank at fault or -1.
class error : public std::runtime_error {
 public:
  explicit error(const alq_error& e)
      : std::runtime_error(e.message),
        code_(e.code),
        rank_(e.rank),
        native_(e.native_code),
        domain_(e.domain) {}
  alq_status code() const noexcept { return code_; }
  int32_t rank() const noexcept { return rank_; }
  int32_t native_code() const noexcept { return native_; }
  int32_t domain() const noexcept { return domain_; }
  const char* name() const noexcept { return alq_status_name(code_); }

 private:
  alq_status code_;
  int32_t rank_, native_, domain_;
};

// A zeroed descriptor that knows its size: zero means "default" everywhere.
template <typename Struct>
Struct desc() {
  Struct out{};
  out.struct_size = sizeof(Struct);
  return out;
}

namespace detail {

// Calls f(args..., &err) and throws what it reports.
template <typename Function, typename... Args>
void call(Function f, Args... args) {
  alq_error e;
  e.struct_size = sizeof(e);
  e.flags = 0;
  if (f(args..., &e) != ALQ_OK) throw error(e);
}

// A (buf, cap, need) function's whole text; it may grow between two calls.
template <typename Function, typename... Args>
std::string text(Function f, Args... args) {
  size_t need = 0;
  call(f, args..., static_cast<char*>(nullptr), size_t{0}, &need);
  std::string out;
  while (out.size() < need) {
    out.resize(need);
    call(f, args..., out.data(), out.size(), &need);
  }
  out.resize(need > 0 ? need - 1 : 0);
  return out;
}

template <typename Handle, void (*Release)(Handle*)>
struct releaser {
  void operator()(Handle* handle) const noexcept { Release(handle); }
};
template <typename Handle, void (*Release)(Handle*)>
using owned = std::unique_ptr<Handle, releaser<Handle, Release>>;

// make<owned<...>>(create, args...) for functions that end in (T** out, err).
template <typename Owned, typename Function, typename... Args>
Owned make(Function f, Args... args) {
  typename Owned::pointer out = nullptr;
  call(f, args..., &out);
  return Owned(out);
}

}  // namespace detail

// The dtype of a C++ type; half types have no C++ type and are given by hand.
template <typename T>
inline constexpr alq_dtype dtype_of = [] {
  static_assert(sizeof(T) == 0, "no dtype for this type; pass one");
  return ALQ_DTYPE_DEFAULT;
}();
template <>
inline constexpr alq_dtype dtype_of<double> = ALQ_F64;
template <>
inline constexpr alq_dtype dtype_of<float> = ALQ_F32;
template <>
inline constexpr alq_dtype dtype_of<int8_t> = ALQ_I8;
template <>
inline constexpr alq_dtype dtype_of<int16_t> = ALQ_I16;
template <>
inline constexpr alq_dtype dtype_of<int32_t> = ALQ_I32;
template <>
inline constexpr alq_dtype dtype_of<int64_t> = ALQ_I64;
template <>
inline constexpr alq_dtype dtype_of<uint8_t> = ALQ_U8;
template <>
inline constexpr alq_dtype dtype_of<uint16_t> = ALQ_U16;
template <>
inline constexpr alq_dtype dtype_of<uint32_t> = ALQ_U32;
template <>
inline constexpr alq_dtype dtype_of<uint64_t> = ALQ_U64;
template <>
inline constexpr alq_dtype dtype_of<std::byte> = ALQ_U8;

inline bool has(const char* feature) { return alq_has(feature) != 0; }

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

// Collectives without a stream return when done; with one they return a work.
// Spans give the counts; out must have the size that aliquot.h asks for.
class group {
 public:
  explicit group(alq_group* handle = nullptr) : h_(handle) {}

  int32_t rank() const noexcept { return alq_group_rank(h_.get()); }
  int32_t size() const noexcept { return alq_group_size(h_.get()); }
  std::vector<int32_t> ranks() const {
    std::vector<int32_t> out(static_cast<size_t>(size()));
    detail::call(alq_group_ranks, h_.get(), out.data(), size());
    return out;
  }
  // A negative color joins no group and gives nothing.
  std::optional<group> split(int32_t color, int32_t key = 0,
                             const char* name = nullptr) {
    auto out = detail::make<owned>(alq_group_split, h_.get(), color, key, name);
    if (!out) return std::nullopt;
    return group(out.release());
  }
  void set_timeout(int64_t ns) {
    detail::call(alq_group_set_timeout, h_.get(), ns);
  }
  // Throws the cause if the group is poisoned.
  void check() const { detail::call(alq_group_status, h_.get()); }
  alq_group_stats stats() const {
    auto out = desc<alq_group_stats>();
    detail::call(alq_group_get_stats, h_.get(), &out);
    return out;
  }
  void abort(const char* reason) {
    detail::call(alq_group_abort, h_.get(), reason);
  }
  void close(int64_t timeout_ns = 0) {
    detail::call(alq_group_close, h_.get(), timeout_ns);
  }

  template <typename T>
  void all_reduce(std::span<T> inout, alq_reduce_op op = ALQ_SUM) {
    issue(nullptr, alq_group_all_reduce, inout.data(), inout.data(),
          count(inout), dtype_of<T>, op);
  }
  template <typename T>
  work all_reduce(std::span<T> inout, alq_reduce_op op, const stream& s) {
    return issue(s.get(), alq_group_all_reduce, inout.data(), inout.data(),
                 count(inout), dtype_of<T>, op);
  }
  template <typename T>
  void all_gather(std::span<const T> in, std::span<T> out) {
    issue(nullptr, alq_group_all_gather, in.data(), out.data(), count(in),
          dtype_of<T>);
  }
  template <typename T>
  work all_gather(std::span<const T> in, std::span<T> out, const stream& s) {
    return issue(s.get(), alq_group_all_gather, in.data(), out.data(),
                 count(in), dtype_of<T>);
  }
  template <typename T>
  void reduce_scatter(std::span<const T> in, std::span<T> out,
                      alq_reduce_op op = ALQ_SUM) {
    issue(nullptr, alq_group_reduce_scatter, in.data(), out.data(), count(out),
          dtype_of<T>, op);
  }
  template <typename T>
  work reduce_scatter(std::span<const T> in, std::span<T> out, alq_reduce_op op,
                      const stream& s) {
    return issue(s.get(), alq_group_reduce_scatter, in.data(), out.data(),
                 count(out), dtype_of<T>, op);
  }
  template <typename T>
  void broadcast(std::span<T> inout, int32_t root) {
    issue(nullptr, alq_group_broadcast, inout.data(), count(inout), dtype_of<T>,
          root);
  }
  template <typename T>
  void all_to_all(std::span<const T> in, std::span<T> out) {
    issue(nullptr, alq_group_all_to_all, in.data(), out.data(),
          count(in) / size(), dtype_of<T>);
  }
  // send_counts and recv_counts: an entry per rank.
  template <typename T>
  void all_to_all_v(std::span<const T> in, std::span<const int64_t> send_counts,
                    std::span<T> out, std::span<const int64_t> recv_counts) {
    issue(nullptr, alq_group_all_to_all_v, in.data(), send_counts.data(),
          out.data(), recv_counts.data(), dtype_of<T>);
  }
  // out of the root; empty elsewhere.
  template <typename T>
  void reduce(std::span<const T> in, std::span<T> out, int32_t root,
              alq_reduce_op op = ALQ_SUM) {
    issue(nullptr, alq_group_reduce, in.data(), out.data(), count(in),
          dtype_of<T>, op, root);
  }
  template <typename T>
  void gather(std::span<const T> in, std::span<T> out, int32_t root) {
    issue(nullptr, alq_group_gather, in.data(), out.data(), count(in), nullptr,
          dtype_of<T>, root);
  }
  // in of the root; empty elsewhere.
  template <typename T>
  void scatter(std::span<const T> in, std::span<T> out, int32_t root) {
    issue(nullptr, alq_group_scatter, in.data(), out.data(), count(out),
          nullptr, dtype_of<T>, root);
  }
  template <typename T>
  void send(std::span<const T> in, int32_t peer) {
    issue(nullptr, alq_group_send, in.data(), count(in), dtype_of<T>, peer);
  }
  template <typename T>
  void recv(std::span<T> out, int32_t peer) {
    issue(nullptr, alq_group_recv, out.data(), count(out), dtype_of<T>, peer);
  }
  void barrier() { issue(nullptr, alq_group_barrier); }

  alq_group* get() const noexcept { return h_.get(); }

 private:
  using owned = detail::owned<alq_group, alq_group_release>;

  template <typename T>
  static int64_t count(std::span<T> s) {
    return static_cast<int64_t>(s.size());
  }
  template <typename Function, typename... Args>
  work issue(const alq_stream* s, Function f, Args... args) {
    alq_work* out = nullptr;
    detail::call(f, h_.get(), args..., s, s == nullptr ? nullptr : &out);
    return work(out);
  }

  owned h_;
};

class mesh {
 public:
  mesh(alq_context* ctx, const char* spec)
      : h_(detail::make<owned>(alq_mesh_create, ctx, spec)) {}
  int32_t axis_size(const char* axis) const {
    return alq_mesh_axis_size(h_.get(), axis);
  }
  int32_t coordinate(const char* axis) const {
    return alq_mesh_coordinate(h_.get(), axis);
  }
  group over(const char* axes) {
    alq_group* out = nullptr;
    detail::call(alq_mesh_group, h_.get(), axes, &out);
    return group(out);
  }
  // World ranks of the group over the axes that holds world rank `rank`.
  std::vector<int32_t> ranks(const char* axes, int32_t rank) const {
    int32_t count = 0;
    detail::call(alq_mesh_ranks, h_.get(), axes, rank,
                 static_cast<int32_t*>(nullptr), 0, &count);
    std::vector<int32_t> out(static_cast<size_t>(count));
    detail::call(alq_mesh_ranks, h_.get(), axes, rank, out.data(), count,
                 &count);
    return out;
  }
  alq_mesh* get() const noexcept { return h_.get(); }

 private:
  using owned = detail::owned<alq_mesh, alq_mesh_release>;
  owned h_;
};

// The sharded engine; see "engine" in aliquot.h for the life of a step.
// stream is a pointer since "the calling thread, now" is nullptr.
class engine {
 public:
  explicit engine(const mesh& m,
                  const alq_engine_desc& d = desc<alq_engine_desc>())
      : h_(detail::make<owned>(alq_engine_create, m.get(), &d)) {}

  int64_t param_add(const alq_param_desc& d) { return id(alq_param_add, &d); }
  int64_t param_add(const char* name, std::span<const int64_t> shape,
                    alq_dtype dtype, uint32_t flags = ALQ_PARAM_TRAINABLE) {
    auto d = desc<alq_param_desc>();
    d.name = name;
    d.shape = shape.data();
    d.ndim = static_cast<int32_t>(shape.size());
    d.dtype = dtype;
    d.flags = flags;
    return param_add(d);
  }
  int64_t unit_add(const char* name, std::span<const int64_t> params,
                   uint32_t flags = 0) {
    return id(alq_unit_add, name, params.data(),
              static_cast<int64_t>(params.size()), flags);
  }
  // Axis masks (ALQ_AXIS_*) of this unit instead of the plan's strategy.
  void unit_place(int64_t unit, uint32_t param_axes, uint32_t grad_axes,
                  uint32_t state_axes) {
    run(alq_unit_place, unit, param_axes, grad_axes, state_axes);
  }
  void optimizer_set(int32_t param_group, const alq_optimizer_desc& d) {
    run(alq_optimizer_set, param_group, &d);
  }
  alq_plan_report plan(const alq_plan_desc& d = desc<alq_plan_desc>()) {
    auto out = desc<alq_plan_report>();
    run(alq_engine_plan, &d, &out);
    return out;
  }
  std::string plan_text(int32_t format = ALQ_FORMAT_TEXT) const {
    return detail::text(alq_engine_plan_text, h_.get(), format);
  }
  void commit(void* slab = nullptr) { run(alq_engine_commit, slab); }

  template <typename T>
  void write(int64_t param, int32_t what, std::span<const T> in,
             int64_t begin = 0) {
    run(alq_param_write, param, what, in.data(), begin,
        static_cast<int64_t>(in.size()), dtype_of<T>);
  }
  template <typename T>
  void read(int64_t param, int32_t what, std::span<T> out, int64_t begin = 0) {
    run(alq_param_read, param, what, out.data(), begin,
        static_cast<int64_t>(out.size()), dtype_of<T>);
  }
  alq_shard shard(int64_t param, int32_t what) {
    auto out = desc<alq_shard>();
    run(alq_shard_view, param, what, &out);
    return out;
  }
  void touch() { run(alq_param_touch); }

  // Returns grad_scale.
  double microbatch_begin(double weight, bool last, int32_t mode = ALQ_TRAIN) {
    double scale = 0;
    run(alq_microbatch_begin, mode, weight, last ? 1 : 0, &scale);
    return scale;
  }
  alq_unit_view unit_begin(int64_t unit, int32_t pass,
                           const stream* s = nullptr) {
    auto view = desc<alq_unit_view>();
    run(alq_unit_begin, unit, pass, raw(s), &view);
    return view;
  }
  void unit_end(int64_t unit, int32_t pass, const stream* s = nullptr) {
    run(alq_unit_end, unit, pass, raw(s));
  }
  void grad_ready(int64_t param, const stream* s = nullptr) {
    run(alq_grad_ready, param, raw(s));
  }
  void grad_push(int64_t param, const alq_tensor& grad,
                 const stream* s = nullptr) {
    run(alq_grad_push, param, &grad, raw(s));
  }
  void microbatch_end(const stream* s = nullptr) {
    run(alq_microbatch_end, raw(s));
  }
  alq_step_report step(const alq_step_desc& d, const stream* s = nullptr) {
    auto out = desc<alq_step_report>();
    run(alq_step, &d, raw(s), &out);
    return out;
  }
  void hold(int64_t unit = ALQ_UNIT_ALL) { run(alq_unit_hold, unit); }
  void unhold(int64_t unit = ALQ_UNIT_ALL) { run(alq_unit_unhold, unit); }
  void abandon(int64_t timeout_ns = 0) { run(alq_engine_abandon, timeout_ns); }
  void join_enter() { run(alq_join_enter); }
  void join_leave() { run(alq_join_leave); }
  std::string report() const {
    return detail::text(alq_engine_report, h_.get());
  }
  void close(int64_t timeout_ns = 0) { run(alq_engine_close, timeout_ns); }
  alq_engine* get() const noexcept { return h_.get(); }

 private:
  using owned = detail::owned<alq_engine, alq_engine_release>;

  static const alq_stream* raw(const stream* s) {
    return s == nullptr ? nullptr : s->get();
  }
  template <typename Function, typename... Args>
  void run(Function f, Args... args) {
    detail::call(f, h_.get(), args...);
  }
  template <typename Function, typename... Args>
  int64_t id(Function f, Args... args) {
    int64_t out = -1;
    run(f, args..., &out);
    return out;
  }

  owned h_;
};

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

#endif  // ALIQUOT_ALIQUOT_HPP_
