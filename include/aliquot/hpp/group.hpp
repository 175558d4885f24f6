// Groups and meshes of aliquot.hpp.
#pragma once

#include <aliquot/hpp/stream.hpp>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace alq {

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
  // After a failure: a group of the survivors.
  group shrink(int64_t timeout_ns = 0) {
    alq_group* out = nullptr;
    detail::call(alq_group_shrink, h_.get(), timeout_ns, &out);
    return group(out);
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

}  // namespace alq
