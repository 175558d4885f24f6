// AdamW on a flat shard in one pass: four reads and three or four writes per
// element, unscaling and clipping folded in by grad_scale.  Source: see
// arithmetic/optimizer.h, whose function each element goes through.
#include "kernels/arithmetic/optimizer.h"
#include "kernels/cuda/any.h"
#include "kernels/cuda/stream.h"

namespace aliquot::kernels {
namespace {

template <typename T, class Grad, class State, class Model>
struct AdamWBody {
  AdamWScale<T> c;
  View<T> master;
  Grad grad;
  State m, v;
  Model model;

  template <int N>
  struct Loaded {
    Pack<T, N> p;
    typename Grad::template Raw<N> g;
    typename State::template Raw<N> m, v;
  };

  template <int N>
  __device__ Lead<N> lead() const {
    Lead<N> lead;
    master.align(&lead);
    grad.align(&lead);
    m.align(&lead);
    v.align(&lead);
    model.align(&lead);
    return lead;
  }

  template <int N>
  __device__ Loaded<N> load(int64_t i) const {
    return {master.template load<N>(i), grad.template load<N>(i),
            m.template load<N>(i), v.template load<N>(i)};
  }

  template <int N>
  __device__ void finish(int64_t i, const Loaded<N>& in) const {
    T p1[N], g[N], m1[N], v1[N];
    master.get(in.p, p1);
    grad.get(in.g, g);
    m.get(in.m, m1);
    v.get(in.v, v1);
#pragma unroll
    for (int j = 0; j < N; ++j) adamw_element(c, g[j], &p1[j], &m1[j], &v1[j]);
    m.put(i, m1);
    v.put(i, v1);
    master.put(i, p1);
    model.put(i, p1);
  }
};

template <typename T>
__device__ AdamWScale<T> adamw_scale(const AdamWArgs& a) {
  const StepFactors* f = a.factors;
  const double scale = a.scalars == nullptr ? 1.0 : a.scalars->grad_scale;
  return {static_cast<T>(scale),
          static_cast<T>(a.beta1),
          static_cast<T>(a.one_minus_beta1),
          static_cast<T>(a.beta2),
          static_cast<T>(a.one_minus_beta2),
          static_cast<T>(f == nullptr ? a.decay : f->decay),
          static_cast<T>(f == nullptr ? a.step_size : f->step_size),
          static_cast<T>(f == nullptr ? a.inv_sqrt_bc2 : f->inv_sqrt_bc2),
          static_cast<T>(a.eps)};
}

__device__ bool skips(const AdamWArgs& a) {
  return a.scalars != nullptr && a.scalars->skip != 0;
}

// State of the master's dtype.
template <typename T, typename G, class Model>
__device__ void adamw(const AdamWArgs& a, Model model) {
  if (skips(a)) return;
  const AdamWBody<T, View<const G>, View<T>, Model> body = {
      adamw_scale<T>(a),
      {static_cast<T*>(a.master)},
      {static_cast<const G*>(a.grad)},
      {static_cast<T*>(a.m)},
      {static_cast<T*>(a.v)},
      model};
  stream<elements_per_access<T, G>(), 1>(body, a.count);
}

template <typename T>
__device__ void adamw_any(const AdamWArgs& a) {
  if (skips(a)) return;
  const AdamWBody<T, AnyView, AnyView, AnyView> body = {
      adamw_scale<T>(a),
      {static_cast<T*>(a.master)},
      {const_cast<void*>(a.grad), a.grad_dtype},
      {a.m, a.state_dtype},
      {a.v, a.state_dtype},
      {a.model, a.model_dtype}};
  stream<kAnyElements, 1>(body, a.count);
}

}  // namespace

#define ALQ_ADAMW(grad, G)                                             \
  ALQ_KERNEL(alq_adamw_##grad##_none, AdamWArgs) {                     \
    adamw<float, G>(args, NoView{});                                   \
  }                                                                    \
  ALQ_KERNEL(alq_adamw_##grad##_f16, AdamWArgs) {                      \
    adamw<float, G>(args, View<F16>{static_cast<F16*>(args.model)});   \
  }                                                                    \
  ALQ_KERNEL(alq_adamw_##grad##_bf16, AdamWArgs) {                     \
    adamw<float, G>(args, View<BF16>{static_cast<BF16*>(args.model)}); \
  }

ALQ_ADAMW(f32, float)
ALQ_ADAMW(f16, F16)
ALQ_ADAMW(bf16, BF16)

#undef ALQ_ADAMW

ALQ_KERNEL(alq_adamw_f64, AdamWArgs) { adamw<double, double>(args, NoView{}); }
ALQ_KERNEL(alq_adamw_any_f32, AdamWArgs) { adamw_any<float>(args); }
ALQ_KERNEL(alq_adamw_any_f64, AdamWArgs) { adamw_any<double>(args); }

}  // namespace aliquot::kernels
