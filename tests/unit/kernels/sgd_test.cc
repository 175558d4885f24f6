// SGD against the scalar definition (bit for bit) and against torch.optim.SGD's
// formula in decimal arithmetic.
#include <cmath>

#include "kernels/arithmetic/optimizer.h"
#include "support.h"

namespace aliquot::kernels {
namespace {

constexpr StepScalars kHalf = {0.5, 0};

struct Flavour {
  bool momentum, nesterov, first, model;
};

template <typename T, typename Grad, typename State, typename Model>
void check_sgd(SgdArgs a, int64_t count, Flavour f) {
  Buffer<T> p(count, sizeof(T)), p1(count);
  Buffer<Grad> grad(count, sizeof(Grad));
  Buffer<State> buf(count), buf1(count);
  Buffer<Model> model(count), model1(count);
  fill_random(p, 1);
  fill_random(grad, 2);
  fill_random(buf, 3);
  fill_random(model, 4);
  p1.copy_from(p);
  buf1.copy_from(buf);
  model1.copy_from(model);
  const SgdScale<T> c = {static_cast<T>(a.scalars->grad_scale),
                         static_cast<T>(a.lr),
                         static_cast<T>(a.weight_decay),
                         static_cast<T>(a.momentum),
                         static_cast<T>(1 - a.dampening),
                         f.nesterov,
                         f.first,
                         f.momentum};
  for (int64_t i = 0; i < count; ++i) {
    T pi = p.get(i), bi = convert<T>(buf.get(i));
    sgd_element(c, convert<T>(grad.get(i)), &pi, &bi);
    p1.set(i, pi);
    if (f.momentum) buf1.set(i, convert<State>(bi));
    if (f.model) model1.set(i, convert<Model>(pi));
  }
  a.master = p.data();
  a.grad = grad.data();
  a.momentum_buffer = f.momentum ? buf.data() : nullptr;
  a.model = f.model ? model.data() : nullptr;
  a.count = count;
  a.nesterov = f.nesterov;
  a.first = f.first;
  run_cpu(OpCode::kSgd, &a);
  BOOST_TEST(p.first_difference(p1) == -1, "count " << count);
  BOOST_TEST(buf.first_difference(buf1) == -1, "count " << count);
  BOOST_TEST(model.first_difference(model1) == -1, "count " << count);
  BOOST_TEST((p.guard_intact() && buf.guard_intact() && model.guard_intact()));
}

constexpr Flavour kFlavours[] = {
    {false, false, false, false}, {false, false, false, true},
    {true, false, true, false},   {true, false, false, true},
    {true, true, true, true},     {true, true, false, false}};

SgdArgs make_args() {
  SgdArgs a = {};
  a.scalars = &kHalf;
  a.lr = 0.01;
  a.weight_decay = 0.1;
  a.momentum = 0.9;
  a.dampening = 0.2;
  return a;
}

template <typename T>
void check_dtypes(SgdArgs a, int64_t count) {
  for (Dtype grad : kFloatDtypes) {
    for (Dtype state : kFloatDtypes) {
      a.grad_dtype = a.model_dtype = grad;
      a.state_dtype = state;
      with_float(grad, [&](auto g) {
        with_float(state, [&](auto s) {
          using Grad = typename decltype(g)::type;
          using State = typename decltype(s)::type;
          for (const Flavour& f : kFlavours) {
            check_sgd<T, Grad, State, Grad>(a, count, f);
          }
        });
      });
    }
  }
}

BOOST_AUTO_TEST_CASE(sgd_every_dtype_and_flavour) {
  for_each_target([] {
    SgdArgs a = make_args();
    for (int64_t count : {0, 1, 17, 601}) {
      a.master_dtype = ALQ_F32;
      check_dtypes<float>(a, count);
      a.master_dtype = ALQ_F64;
      check_dtypes<double>(a, count);
    }
  });
}

BOOST_AUTO_TEST_CASE(sgd_every_count) {
  for_each_target([] {
    SgdArgs a = make_args();
    a.master_dtype = a.grad_dtype = a.state_dtype = a.model_dtype = ALQ_F32;
    for (int64_t count : test_counts()) {
      check_sgd<float, float, float, float>(a, count, kFlavours[3]);
    }
  });
}

// Gradients 0.5, -0.25, 2 from p = 1: lr 0.1, weight decay 0.1, momentum 0.9;
// dampening 0.2 without Nesterov, none with it.
BOOST_AUTO_TEST_CASE(sgd_matches_the_formula_of_torch) {
  const double grads[3] = {0.5, -0.25, 2.0};
  const double expected[2] = {0.69392416, 0.440906146};
  const StepScalars scalars = {1.0, 0};
  for (int64_t nesterov : {0, 1}) {
    double p = 1, buf = 123;  // the first step does not read it
    for (int t = 0; t < 3; ++t) {
      SgdArgs a = make_args();
      a.scalars = &scalars;
      a.master_dtype = a.grad_dtype = a.state_dtype = ALQ_F64;
      a.master = &p;
      a.grad = &grads[t];
      a.momentum_buffer = &buf;
      a.count = 1;
      a.lr = 0.1;
      a.dampening = nesterov != 0 ? 0 : 0.2;
      a.nesterov = nesterov;
      a.first = t == 0;
      run_cpu(OpCode::kSgd, &a);
    }
    BOOST_TEST(std::fabs(p - expected[nesterov]) < 1e-14);
  }
}

BOOST_AUTO_TEST_CASE(sgd_skip_touches_nothing) {
  const StepScalars skip = {1.0, 1};
  float p = 1, g = 2, buf = 3;
  SgdArgs a = make_args();
  a.scalars = &skip;
  a.master_dtype = a.grad_dtype = a.state_dtype = ALQ_F32;
  a.master = &p;
  a.grad = &g;
  a.momentum_buffer = &buf;
  a.count = 1;
  run_cpu(OpCode::kSgd, &a);
  BOOST_TEST((p == 1 && buf == 3));
}

}  // namespace
}  // namespace aliquot::kernels
