// SGD on a flat shard in one pass, with momentum, dampening, Nesterov and
// weight decay as torch.optim.SGD defines them.  Cost: 2 or 3 reads and 1 to 3
// writes per element.  Other dtypes are staged (staging.h).
#include "kernels/cpu/simd.h"
// The target list comes before Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sgd.cc"
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

template <typename T, typename Grad>
struct SgdBody {
  SgdScale<T> c;
  T* p;
  const Grad* grad;
  T* buffer;

  template <class D, class Access>
  HWY_INLINE void operator()(D d, size_t i, Access at) const {
    const auto p0 = at.get(d, p + i);
    const auto momentum = hn::Set(d, c.momentum);
    auto g = hn::Add(hn::Mul(at.get(d, grad + i), hn::Set(d, c.grad_scale)),
                     hn::Mul(p0, hn::Set(d, c.weight_decay)));
    if (c.has_momentum) {
      auto b = g;
      if (!c.first) {
        b = hn::Add(hn::Mul(at.get(d, buffer + i), momentum),
                    hn::Mul(g, hn::Set(d, c.one_minus_dampening)));
      }
      g = c.nesterov ? hn::Add(g, hn::Mul(b, momentum)) : b;
      at.put(canonical_lanes(d, b), d, buffer + i);
    }
    const auto p1 = hn::Sub(p0, hn::Mul(g, hn::Set(d, c.lr)));
    at.put(canonical_lanes(d, p1), d, p + i);
  }
};

template <typename T, typename Grad>
void sgd_typed(const SgdArgs& a) {
  const SgdScale<T> c = {static_cast<T>(a.scalars->grad_scale),
                         static_cast<T>(a.lr),
                         static_cast<T>(a.weight_decay),
                         static_cast<T>(a.momentum),
                         static_cast<T>(1.0 - a.dampening),
                         a.nesterov != 0,
                         a.first != 0,
                         a.momentum_buffer != nullptr};
  const hn::ScalableTag<T> d;
  for_each_vector(d, static_cast<const T*>(a.master), a.count,
                  SgdBody<T, Grad>{c, static_cast<T*>(a.master),
                                   static_cast<const Grad*>(a.grad),
                                   static_cast<T*>(a.momentum_buffer)});
}

// No model; buffer in the master's dtype; grad too, or bf16 with f32.
void sgd(const SgdArgs& a) {
  if (a.master_dtype == ALQ_F64) return sgd_typed<double, double>(a);
  if (a.grad_dtype == ALQ_BF16) return sgd_typed<float, BF16>(a);
  return sgd_typed<float, float>(a);
}

}  // namespace HWY_NAMESPACE
}  // namespace aliquot::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace aliquot::kernels {
namespace {

constexpr SimdTable<void(const SgdArgs&)> kSgd = ALQ_SIMD_TABLE(sgd);
constexpr StepScalars kNoScale = {1.0, 0};

bool supported(const SgdArgs& a) {
  return (a.master_dtype == ALQ_F32 || a.master_dtype == ALQ_F64) &&
         is_float(a.grad_dtype) &&
         (a.momentum_buffer == nullptr || is_float(a.state_dtype)) &&
         (a.model == nullptr || is_float(a.model_dtype));
}

bool is_direct(const SgdArgs& a) {
  const bool state =
      a.momentum_buffer == nullptr || a.state_dtype == a.master_dtype;
  const bool grad = a.grad_dtype == a.master_dtype ||
                    (a.master_dtype == ALQ_F32 && a.grad_dtype == ALQ_BF16);
  return state && grad && a.model == nullptr;
}

void sgd_staged(const SgdArgs& a) {
  const Dtype inner = a.master_dtype;
  Stage grad(const_cast<void*>(a.grad), a.grad_dtype, inner);
  Stage buffer(a.momentum_buffer, a.state_dtype, inner);
  for (int64_t at = 0; at < a.count; at += kStageCount) {
    const int64_t count = std::min(kStageCount, a.count - at);
    SgdArgs block = a;
    block.count = count;
    block.master = static_cast<char*>(a.master) + at * dtype_size(inner);
    block.grad = grad.in(at, count);
    block.momentum_buffer = buffer.in(at, count);
    block.grad_dtype = block.state_dtype = inner;
    kSgd[chosen_target()](block);
    buffer.out(at, count);
    if (a.model != nullptr) {
      cast_cpu({static_cast<char*>(a.model) + at * dtype_size(a.model_dtype),
                block.master, count, a.model_dtype, inner, 1.0});
    }
  }
}

}  // namespace

void sgd_cpu(const SgdArgs& args) {
  SgdArgs a = args;
  if (a.scalars == nullptr) a.scalars = &kNoScale;
  if (a.scalars->skip != 0 || !supported(a)) return;
  if (a.factors != nullptr) {
    a.lr = a.factors->lr;
    a.weight_decay = a.factors->weight_decay;
    a.first = a.factors->first;
  }
  if (is_direct(a)) {
    kSgd[chosen_target()](a);
  } else {
    sgd_staged(a);
  }
}

}  // namespace aliquot::kernels
#endif  // HWY_ONCE
