// The sharded engine of aliquot.hpp.
#pragma once

#include <aliquot/hpp/group.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace alq {

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
  alq_join_report join_enter() { return join(alq_join_enter); }
  alq_join_report join_leave() { return join(alq_join_leave); }
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
  template <typename Function>
  alq_join_report join(Function f) {
    auto out = desc<alq_join_report>();
    run(f, &out);
    return out;
  }
  template <typename Function, typename... Args>
  int64_t id(Function f, Args... args) {
    int64_t out = -1;
    run(f, args..., &out);
    return out;
  }

  owned h_;
};

}  // namespace alq
