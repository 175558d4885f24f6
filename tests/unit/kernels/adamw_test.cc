// AdamW against the scalar definition (bit for bit), against f64, and against
// numbers of torch.optim.AdamW's documented formula worked out by hand.
#include <cmath>

#include "kernels/arithmetic/optimizer.h"
#include "support.h"

namespace aliquot::kernels {
namespace {

struct Setup {
  double lr = 1e-2, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0.1;
  int step = 3;
};

AdamWArgs make_args(const Setup& s, const StepScalars* scalars) {
  AdamWArgs a = {};
  a.scalars = scalars;
  a.beta1 = s.beta1;
  a.one_minus_beta1 = 1 - s.beta1;
  a.beta2 = s.beta2;
  a.one_minus_beta2 = 1 - s.beta2;
  a.decay = 1 - s.lr * s.decay;
  a.step_size = s.lr / (1 - std::pow(s.beta1, s.step));
  a.inv_sqrt_bc2 = 1 / std::sqrt(1 - std::pow(s.beta2, s.step));
  a.eps = s.eps;
  return a;
}

template <typename T>
AdamWScale<T> scale_of(const AdamWArgs& a) {
  return {static_cast<T>(a.scalars->grad_scale),
          static_cast<T>(a.beta1),
          static_cast<T>(a.one_minus_beta1),
          static_cast<T>(a.beta2),
          static_cast<T>(a.one_minus_beta2),
          static_cast<T>(a.decay),
          static_cast<T>(a.step_size),
          static_cast<T>(a.inv_sqrt_bc2),
          static_cast<T>(a.eps)};
}

constexpr StepScalars kHalf = {0.5, 0};

template <typename T, typename Grad, typename State, typename Model>
void check_adamw(const AdamWArgs& base, int64_t count, bool with_model) {
  Buffer<T> p(count, sizeof(T)), p1(count);
  Buffer<Grad> grad(count, sizeof(Grad));
  Buffer<State> m(count), v(count), m1(count), v1(count);
  Buffer<Model> model(count, sizeof(Model)), model1(count);
  fill_random(p, 1);
  fill_random(grad, 2);
  fill_random(m, 3);
  fill_moderate(v, 4, 0, 1);
  fill_random(model, 5);
  model1.copy_from(model);
  AdamWArgs a = base;
  const AdamWScale<T> c = scale_of<T>(a);
  for (int64_t i = 0; i < count; ++i) {
    T pi = p.get(i), mi = convert<T>(m.get(i)), vi = convert<T>(v.get(i));
    adamw_element(c, convert<T>(grad.get(i)), &pi, &mi, &vi);
    p1.set(i, pi);
    m1.set(i, convert<State>(mi));
    v1.set(i, convert<State>(vi));
    if (with_model) model1.set(i, convert<Model>(pi));
  }
  a.master = p.data();
  a.grad = grad.data();
  a.m = m.data();
  a.v = v.data();
  a.model = with_model ? model.data() : nullptr;
  a.count = count;
  run_cpu(OpCode::kAdamW, &a);
  BOOST_TEST_CONTEXT(dtype_name(a.master_dtype)
                     << ' ' << dtype_name(a.grad_dtype) << ' '
                     << dtype_name(a.state_dtype) << ' '
                     << dtype_name(a.model_dtype) << ", count " << count) {
    BOOST_TEST(p.first_difference(p1) == -1);
    BOOST_TEST(m.first_difference(m1) == -1);
    BOOST_TEST(v.first_difference(v1) == -1);
    BOOST_TEST(model.first_difference(model1) == -1);
    BOOST_TEST((p.guard_intact() && m.guard_intact() && v.guard_intact() &&
                model.guard_intact()));
  }
}

template <typename T>
void check_dtypes(AdamWArgs a, int64_t count) {
  for (Dtype grad : kFloatDtypes) {
    for (Dtype state : kFloatDtypes) {
      a.grad_dtype = grad;
      a.state_dtype = state;
      a.model_dtype = grad;
      with_float(grad, [&](auto g) {
        with_float(state, [&](auto s) {
          using Grad = typename decltype(g)::type;
          using State = typename decltype(s)::type;
          check_adamw<T, Grad, State, Grad>(a, count, false);
          check_adamw<T, Grad, State, Grad>(a, count, true);
        });
      });
    }
  }
}

BOOST_AUTO_TEST_CASE(adamw_every_dtype) {
  for_each_target([] {
    AdamWArgs a = make_args({}, &kHalf);
    for (int64_t count : {0, 1, 17, 1301}) {
      a.master_dtype = ALQ_F32;
      check_dtypes<float>(a, count);
      a.master_dtype = ALQ_F64;
      check_dtypes<double>(a, count);
    }
  });
}

BOOST_AUTO_TEST_CASE(adamw_every_count) {
  for_each_target([] {
    AdamWArgs a = make_args({}, &kHalf);
    a.master_dtype = a.state_dtype = ALQ_F32;
    a.grad_dtype = a.model_dtype = ALQ_BF16;
    for (int64_t count : test_counts()) {
      check_adamw<float, BF16, float, BF16>(a, count, true);
    }
  });
}

// Twenty steps in f32 stay near the same steps in f64.
BOOST_AUTO_TEST_CASE(adamw_f32_follows_f64) {
  constexpr int64_t kCount = 257;
  Buffer<float> p(kCount), g(kCount), m(kCount), v(kCount);
  Buffer<double> p2(kCount), g2(kCount), m2(kCount), v2(kCount);
  fill_moderate(p, 1, -1, 1);
  for (int64_t i = 0; i < kCount; ++i) {
    p2.set(i, static_cast<double>(p.get(i)));
    m.set(i, 0);
    v.set(i, 0);
    m2.set(i, 0);
    v2.set(i, 0);
  }
  const StepScalars scalars = {0.7, 0};
  for (int step = 1; step <= 20; ++step) {
    fill_moderate(g, static_cast<uint64_t>(step), -1, 1);
    for (int64_t i = 0; i < kCount; ++i) {
      g2.set(i, static_cast<double>(g.get(i)));
    }
    AdamWArgs a = make_args({.step = step}, &scalars);
    a.count = kCount;
    a.master_dtype = a.grad_dtype = a.state_dtype = ALQ_F32;
    a.master = p.data();
    a.grad = g.data();
    a.m = m.data();
    a.v = v.data();
    run_cpu(OpCode::kAdamW, &a);
    a.master_dtype = a.grad_dtype = a.state_dtype = ALQ_F64;
    a.master = p2.data();
    a.grad = g2.data();
    a.m = m2.data();
    a.v = v2.data();
    run_cpu(OpCode::kAdamW, &a);
  }
  for (int64_t i = 0; i < kCount; ++i) {
    BOOST_TEST(std::fabs(static_cast<double>(p.get(i)) - p2.get(i)) < 1e-5);
  }
}

// p = 1, three steps with gradients 0.5, -0.25, 2 at lr 0.1, weight decay 0.1,
// as torch computes it: p -= lr wd p; mhat = m / (1 - beta1^t); vhat likewise;
// p -= lr mhat / (sqrt(vhat) + eps).
BOOST_AUTO_TEST_CASE(adamw_matches_the_formula_of_torch) {
  const double grads[3] = {0.5, -0.25, 2.0};
  double p = 1, m = 0, v = 0;
  double expected = 1, em = 0, ev = 0;
  const StepScalars scalars = {1.0, 0};
  for (int t = 1; t <= 3; ++t) {
    const double g = grads[t - 1];
    AdamWArgs a = make_args({.lr = 0.1, .decay = 0.1, .step = t}, &scalars);
    a.count = 1;
    a.master_dtype = a.grad_dtype = a.state_dtype = ALQ_F64;
    a.master = &p;
    a.grad = &g;
    a.m = &m;
    a.v = &v;
    run_cpu(OpCode::kAdamW, &a);
    expected -= 0.1 * 0.1 * expected;
    em = 0.9 * em + 0.1 * g;
    ev = 0.999 * ev + 0.001 * g * g;
    const double mhat = em / (1 - std::pow(0.9, t));
    const double vhat = ev / (1 - std::pow(0.999, t));
    expected -= 0.1 * mhat / (std::sqrt(vhat) + 1e-8);
    BOOST_TEST(std::fabs(p - expected) < 1e-15);
  }
  // The same with 40 decimal digits.
  BOOST_TEST(std::fabs(p - 0.77885687152227444064) < 1e-14);
}

BOOST_AUTO_TEST_CASE(adamw_skip_touches_nothing) {
  const StepScalars skip = {1.0, 1};
  Buffer<float> p(9), g(9), m(9), v(9), p0(9), m0(9), v0(9);
  Buffer<BF16> model(9), model0(9);
  fill_random(p, 1);
  fill_random(g, 2);
  fill_random(m, 3);
  fill_random(v, 4);
  fill_random(model, 5);
  p0.copy_from(p);
  m0.copy_from(m);
  v0.copy_from(v);
  model0.copy_from(model);
  AdamWArgs a = make_args({}, &skip);
  a.count = 9;
  a.master_dtype = a.grad_dtype = a.state_dtype = ALQ_F32;
  a.model_dtype = ALQ_BF16;
  a.master = p.data();
  a.model = model.data();
  a.grad = g.data();
  a.m = m.data();
  a.v = v.data();
  run_cpu(OpCode::kAdamW, &a);
  BOOST_TEST(p.first_difference(p0) == -1);
  BOOST_TEST(m.first_difference(m0) == -1);
  BOOST_TEST(v.first_difference(v0) == -1);
  BOOST_TEST(model.first_difference(model0) == -1);
}

}  // namespace
}  // namespace aliquot::kernels
