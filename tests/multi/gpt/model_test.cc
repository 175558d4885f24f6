// The whole model: gradients against central differences, the beta contract,
// recomputation, dtypes, and training that overfits.
#include "model.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <vector>

#include "gemm.h"
#include "memory_host.h"

namespace gpt {
namespace {

Shape tiny() {
  Shape s;
  s.layers = 2, s.hidden = 12, s.heads = 6, s.kv_heads = 2, s.ffn = 10;
  s.seq = 9, s.micro_batch = 2;
  return s;
}

std::vector<uint8_t> text(const Shape& s, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> tokens(static_cast<size_t>(s.micro_batch * (s.seq + 1)));
  for (uint8_t& t : tokens) t = static_cast<uint8_t>('a' + random() % 9);
  return tokens;
}

template <class T>
bool same(const std::vector<std::vector<T>>& a,
          const std::vector<std::vector<T>>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(T)) != 0) {
      return false;
    }
  }
  return true;
}

void check_model_gradient(const Shape& s) {
  use_one_blas_thread();
  MemoryHost<double> host(layout_of(s));
  const auto model = make_model<double>(s);
  const auto tokens = text(s, 3);
  model->forward(host, tokens.data());
  model->backward(host, 1.0);
  BOOST_TEST(host.all_closed());
  for (size_t p = 0; p < host.params.size(); ++p) {
    BOOST_TEST(host.ready_count[p] == 1);
    double largest = 0, worst = 0;
    for (const double g : host.grads[p]) {
      largest = std::max(largest, std::abs(g));
    }
    BOOST_TEST_REQUIRE(largest > 0);
    const size_t stride = host.params[p].size() > 1000 ? 37 : 3;
    for (size_t i = 0; i < host.params[p].size(); i += stride) {
      double& x = host.params[p][i];
      const double kept = x, h = 1e-5;
      x = kept + h;
      const double high = model->evaluate(host, tokens.data());
      x = kept - h;
      const double low = model->evaluate(host, tokens.data());
      x = kept;
      worst =
          std::max(worst, std::abs((high - low) / (2 * h) - host.grads[p][i]));
    }
    BOOST_TEST(worst / largest < 1e-6,
               "parameter " << p << " is off by " << worst / largest);
  }
}

BOOST_AUTO_TEST_CASE(model_gradient) { check_model_gradient(tiny()); }

BOOST_AUTO_TEST_CASE(tied_model_gradient) {
  Shape s = tiny();
  s.tied = true;
  check_model_gradient(s);
}

template <class T>
void check_checkpoint() {
  Shape s = tiny();
  Shape lean = s;
  lean.checkpoint = true;
  MemoryHost<T> a(layout_of(s)), b(layout_of(lean));
  const auto full = make_model<T>(s), small = make_model<T>(lean);
  BOOST_TEST(small->activation_bytes() < full->activation_bytes());
  const auto tokens = text(s, 4);
  BOOST_TEST(full->forward(a, tokens.data()) ==
             small->forward(b, tokens.data()));
  full->backward(a, 0.25);
  small->backward(b, 0.25);
  BOOST_TEST(a.recomputes == 0);
  BOOST_TEST(b.recomputes == 2);
  BOOST_TEST(b.all_closed());
  BOOST_TEST(same(a.grads, b.grads));
}

BOOST_AUTO_TEST_CASE(checkpoint_has_the_same_bits) {
  check_checkpoint<double>();
  check_checkpoint<float>();
  check_checkpoint<Bf16>();
}

BOOST_AUTO_TEST_CASE(beta_adds) {
  for (const bool tied : {false, true}) {
    Shape s = tiny();
    s.tied = tied;
    MemoryHost<double> once(layout_of(s)), twice(layout_of(s));
    const auto model = make_model<double>(s);
    const auto tokens = text(s, 5);
    model->forward(once, tokens.data());
    model->backward(once, 2.0);
    for (const int32_t beta : {0, 1}) {
      twice.betas.assign(twice.betas.size(), beta);
      model->forward(twice, tokens.data());
      model->backward(twice, 1.0);
    }
    double worst = 0;
    for (size_t p = 0; p < once.grads.size(); ++p) {
      for (size_t i = 0; i < once.grads[p].size(); ++i) {
        worst = std::max(worst, std::abs(once.grads[p][i] - twice.grads[p][i]));
      }
    }
    BOOST_TEST(worst < 1e-12);
  }
}

template <class T>
double distance_to_f64(const Shape& s) {
  MemoryHost<double> exact(layout_of(s));
  MemoryHost<T> host(layout_of(s));
  for (size_t p = 0; p < exact.params.size(); ++p) {
    for (size_t i = 0; i < exact.params[p].size(); ++i) {
      exact.params[p][i] = static_cast<double>(up(host.params[p][i]));
    }
  }
  const auto a = make_model<double>(s);
  const auto b = make_model<T>(s);
  const auto tokens = text(s, 6);
  a->forward(exact, tokens.data());
  b->forward(host, tokens.data());
  a->backward(exact, 1.0);
  b->backward(host, 1.0);
  double error = 0, norm = 0;
  for (size_t p = 0; p < exact.grads.size(); ++p) {
    for (size_t i = 0; i < exact.grads[p].size(); ++i) {
      const double g = exact.grads[p][i];
      const double e = static_cast<double>(up(host.grads[p][i])) - g;
      error += e * e;
      norm += g * g;
    }
  }
  return std::sqrt(error / norm);
}

BOOST_AUTO_TEST_CASE(narrow_dtypes_follow_f64) {
  BOOST_TEST(distance_to_f64<float>(tiny()) < 2e-6);
  BOOST_TEST(distance_to_f64<Bf16>(tiny()) < 3e-2);
}

template <class T>
void check_overfit(double goal) {
  Shape s = tiny();
  s.hidden = 24;
  MemoryHost<T> host(layout_of(s));
  const auto model = make_model<T>(s);
  const auto tokens = text(s, 9);
  const double rows = static_cast<double>(s.rows());
  const double first = model->forward(host, tokens.data()) / rows;
  double last = first;
  for (int step = 0; step < 150; ++step) {
    last = model->forward(host, tokens.data()) / rows;
    model->backward(host, 1.0 / rows);
    for (size_t p = 0; p < host.params.size(); ++p) {
      for (size_t i = 0; i < host.params[p].size(); ++i) {
        const auto g = up(host.grads[p][i]);
        host.params[p][i] =
            down<T>(up(host.params[p][i]) - static_cast<Compute<T>>(0.3) * g);
      }
    }
  }
  BOOST_TEST(first > 4.0);
  BOOST_TEST(last < goal);
}

BOOST_AUTO_TEST_CASE(loss_falls) {
  check_overfit<double>(0.05);
  check_overfit<float>(0.05);
  check_overfit<Bf16>(0.5);
}

BOOST_AUTO_TEST_CASE(impossible_shapes_are_explained) {
  Shape s = tiny();
  BOOST_TEST(why_not(s) == "");
  s.heads = 5;
  BOOST_TEST(why_not(s).find("not divisible by --heads 5") !=
             std::string::npos);
  s = tiny(), s.kv_heads = 4;
  BOOST_TEST(why_not(s).find("--kv-heads 4") != std::string::npos);
  s = tiny(), s.hidden = 18;
  BOOST_TEST(why_not(s).find("even number") != std::string::npos);
  s = tiny(), s.layers = 0;
  BOOST_TEST(why_not(s).find("--layers is 0") != std::string::npos);
}

}  // namespace
}  // namespace gpt
