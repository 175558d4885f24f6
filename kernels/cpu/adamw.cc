// AdamW on a flat shard in one pass: per element 4 reads and 3 or 4 writes, a
// square root and a division.  Other dtypes than those of the vector loop are
// staged (staging.h).  Source: see arithmetic/optimizer.h.
#include "kernels/cpu/simd.h"
// The target list comes before Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/adamw.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/arithmetic/optimizer.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/lanes-inl.h"
#include "kernels/cpu/staging.h"

HWY_BEFORE_NAMESPACE();
namespace aliquot::kernels {
namespace HWY_NAMESPACE {

// Model is void when there is none.
template <typename T, typename Grad, typename Model>
struct AdamWBody {
  AdamWScale<T> c;
  T* p;
  Model* model;
  const Grad* grad;
  T* m;
  T* v;

  template <class D, class Access>
  HWY_INLINE void operator()(D d, size_t i, Access at) const {
    const auto g = hn::Mul(at.get(d, grad + i), hn::Set(d, c.grad_scale));
    const auto m1 = hn::Add(hn::Mul(at.get(d, m + i), hn::Set(d, c.beta1)),
                            hn::Mul(g, hn::Set(d, c.one_minus_beta1)));
    const auto v1 =
        hn::Add(hn::Mul(at.get(d, v + i), hn::Set(d, c.beta2)),
                hn::Mul(hn::Mul(g, g), hn::Set(d, c.one_minus_beta2)));
    const auto decayed = hn::Mul(at.get(d, p + i), hn::Set(d, c.decay));
    const auto denominator = hn::Add(
        hn::Mul(hn::Sqrt(v1), hn::Set(d, c.inv_sqrt_bc2)), hn::Set(d, c.eps));
    const auto update =
        hn::Div(hn::Mul(m1, hn::Set(d, c.step_size)), denominator);
    const auto p1 = canonical_lanes(d, hn::Sub(decayed, update));
    at.put(canonical_lanes(d, m1), d, m + i);
    at.put(canonical_lanes(d, v1), d, v + i);
    at.put(p1, d, p + i);
    if constexpr (!std::is_void_v<Model>) at.put(p1, d, model + i);
  }
};

template <typename T, typename Grad, typename Model>
void adamw_typed(const AdamWArgs& a) {
  const AdamWScale<T> c = {static_cast<T>(a.scalars->grad_scale),
                           static_cast<T>(a.beta1),
                           static_cast<T>(a.one_minus_beta1),
                           static_cast<T>(a.beta2),
                           static_cast<T>(a.one_minus_beta2),
                           static_cast<T>(a.decay),
                           static_cast<T>(a.step_size),
                           static_cast<T>(a.inv_sqrt_bc2),
                           static_cast<T>(a.eps)};
  const hn::ScalableTag<T> d;
  for_each_vector(
      d, static_cast<const T*>(a.master), a.count,
      AdamWBody<T, Grad, Model>{c, static_cast<T*>(a.master),
                                static_cast<Model*>(a.model),
                                static_cast<const Grad*>(a.grad),
                                static_cast<T*>(a.m), static_cast<T*>(a.v)});
}

template <typename Grad>
void adamw_f32(const AdamWArgs& a) {
  if (a.model == nullptr) return adamw_typed<float, Grad, void>(a);
  if (a.model_dtype == ALQ_BF16) return adamw_typed<float, Grad, BF16>(a);
  return adamw_typed<float, Grad, F16>(a);
}

// State in the master's dtype, grad too or a half, model none or a half.
void adamw(const AdamWArgs& a) {
  if (a.master_dtype == ALQ_F64) return adamw_typed<double, double, void>(a);
  if (a.grad_dtype == ALQ_F32) return adamw_f32<float>(a);
  if (a.grad_dtype == ALQ_BF16) return adamw_f32<BF16>(a);
  return adamw_f32<F16>(a);
}

}  // namespace HWY_NAMESPACE
}  // namespace aliquot::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aliquot::kernels {
namespace {

constexpr SimdTable<void(const AdamWArgs&)> kAdamW = ALQ_SIMD_TABLE(adamw);
constexpr StepScalars kNoScale = {1.0, 0};

bool is_half(Dtype dtype) { return dtype == ALQ_F16 || dtype == ALQ_BF16; }

bool supported(const AdamWArgs& a) {
  return (a.master_dtype == ALQ_F32 || a.master_dtype == ALQ_F64) &&
         is_float(a.grad_dtype) && is_float(a.state_dtype) &&
         (a.model == nullptr || is_float(a.model_dtype));
}

bool is_direct(const AdamWArgs& a) {
  if (a.state_dtype != a.master_dtype) return false;
  const bool f32 = a.master_dtype == ALQ_F32;
  const bool grad =
      a.grad_dtype == a.master_dtype || (f32 && is_half(a.grad_dtype));
  const bool model = a.model == nullptr || (f32 && is_half(a.model_dtype));
  return grad && model;
}

void adamw_staged(const AdamWArgs& a) {
  const Dtype inner = a.master_dtype;
  Stage grad(const_cast<void*>(a.grad), a.grad_dtype, inner);
  Stage m(a.m, a.state_dtype, inner);
  Stage v(a.v, a.state_dtype, inner);
  for (int64_t at = 0; at < a.count; at += kStageCount) {
    const int64_t count = std::min(kStageCount, a.count - at);
    AdamWArgs block = a;
    block.count = count;
    block.master = static_cast<char*>(a.master) + at * dtype_size(inner);
    block.model = nullptr;
    block.grad = grad.in(at, count);
    block.m = m.in(at, count);
    block.v = v.in(at, count);
    block.grad_dtype = block.state_dtype = inner;
    kAdamW[chosen_target()](block);
    m.out(at, count);
    v.out(at, count);
    if (a.model != nullptr) {
      cast_cpu({static_cast<char*>(a.model) + at * dtype_size(a.model_dtype),
                block.master, count, a.model_dtype, inner, 1.0});
    }
  }
}

}  // namespace

void adamw_cpu(const AdamWArgs& args) {
  AdamWArgs a = args;
  if (a.scalars == nullptr) a.scalars = &kNoScale;
  if (a.scalars->skip != 0 || !supported(a)) return;
  if (a.factors != nullptr) {
    a.decay = a.factors->decay;
    a.step_size = a.factors->step_size;
    a.inv_sqrt_bc2 = a.factors->inv_sqrt_bc2;
  }
  if (is_direct(a)) {
    kAdamW[chosen_target()](a);
  } else {
    adamw_staged(a);
  }
}

}  // namespace aliquot::kernels
#endif  // HWY_ONCE
