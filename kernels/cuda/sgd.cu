// SGD on a flat shard in one pass: two or three reads and one to three writes
// per element.  Source: see arithmetic/optimizer.h, whose function each element
// goes through.
#include "kernels/arithmetic/optimizer.h"
#include "kernels/cuda/any.h"
#include "kernels/cuda/stream.h"

namespace aliquot::kernels {
namespace {

template <typename T, class Grad, class State, class Model>
struct SgdBody {
  SgdScale<T> c;
  View<T> master;
  Grad grad;
  State buffer;
  Model model;

  template <int N>
  struct Loaded {
    Pack<T, N> p;
    typename Grad::template Raw<N> g;
    typename State::template Raw<N> b;
  };

  template <int N>
  __device__ Lead<N> lead() const {
    Lead<N> lead;
    master.align(&lead);
    grad.align(&lead);
    if (c.has_momentum) buffer.align(&lead);
    model.align(&lead);
    return lead;
  }

  template <int N>
  __device__ Loaded<N> load(int64_t i) const {
    Loaded<N> in = {};
    in.p = master.template load<N>(i);
    in.g = grad.template load<N>(i);
    if (c.has_momentum && !c.first) in.b = buffer.template load<N>(i);
    return in;
  }

  template <int N>
  __device__ void finish(int64_t i, const Loaded<N>& in) const {
    T p1[N], g[N], b[N];
    master.get(in.p, p1);
    grad.get(in.g, g);
    buffer.get(in.b, b);
#pragma unroll
    for (int j = 0; j < N; ++j) sgd_element(c, g[j], &p1[j], &b[j]);
    if (c.has_momentum) buffer.put(i, b);
    master.put(i, p1);
    model.put(i, p1);
  }
};

template <typename T>
__device__ SgdScale<T> sgd_scale(const SgdArgs& a) {
  const StepFactors* f = a.factors;
  const double scale = a.scalars == nullptr ? 1.0 : a.scalars->grad_scale;
  return {static_cast<T>(scale),
          static_cast<T>(f == nullptr ? a.lr : f->lr),
          static_cast<T>(f == nullptr ? a.weight_decay : f->weight_decay),
          static_cast<T>(a.momentum),
          static_cast<T>(1.0 - a.dampening),
          a.nesterov != 0,
          (f == nullptr ? a.first : f->first) != 0,
          a.momentum_buffer != nullptr};
}

__device__ bool skips(const SgdArgs& a) {
  return a.scalars != nullptr && a.scalars->skip != 0;
}

// The buffer, if any, of the master's dtype.
template <typename T, typename G, class Model>
__device__ void sgd(const SgdArgs& a, Model model) {
  if (skips(a)) return;
  const SgdBody<T, View<const G>, View<T>, Model> body = {
      sgd_scale<T>(a),
      {static_cast<T*>(a.master)},
      {static_cast<const G*>(a.grad)},
      {static_cast<T*>(a.momentum_buffer)},
      model};
  stream<elements_per_access<T, G>(), 1>(body, a.count);
}

template <typename T>
__device__ void sgd_any(const SgdArgs& a) {
  if (skips(a)) return;
  const SgdBody<T, AnyView, AnyView, AnyView> body = {
      sgd_scale<T>(a),
      {static_cast<T*>(a.master)},
      {const_cast<void*>(a.grad), a.grad_dtype},
      {a.momentum_buffer, a.state_dtype},
      {a.model, a.model_dtype}};
  stream<kAnyElements, 1>(body, a.count);
}

}  // namespace

#define ALQ_SGD(grad, G)                                             \
  ALQ_KERNEL(alq_sgd_##grad##_none, SgdArgs) {                       \
    sgd<float, G>(args, NoView{});                                   \
  }                                                                  \
  ALQ_KERNEL(alq_sgd_##grad##_f16, SgdArgs) {                        \
    sgd<float, G>(args, View<F16>{static_cast<F16*>(args.model)});   \
  }                                                                  \
  ALQ_KERNEL(alq_sgd_##grad##_bf16, SgdArgs) {                       \
    sgd<float, G>(args, View<BF16>{static_cast<BF16*>(args.model)}); \
  }

ALQ_SGD(f32, float)
ALQ_SGD(f16, F16)
ALQ_SGD(bf16, BF16)

#undef ALQ_SGD

ALQ_KERNEL(alq_sgd_f64, SgdArgs) { sgd<double, double>(args, NoView{}); }
ALQ_KERNEL(alq_sgd_any_f32, SgdArgs) { sgd_any<float>(args); }
ALQ_KERNEL(alq_sgd_any_f64, SgdArgs) { sgd_any<double>(args); }

}  // namespace aliquot::kernels
