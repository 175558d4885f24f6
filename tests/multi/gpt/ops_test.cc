// Every operation against a naive reference, and its backward pass against
// central differences in f64.
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "attention.h"
#include "loss.h"
#include "rmsnorm.h"
#include "rope.h"
#include "swiglu.h"

namespace gpt {
namespace {

using Vec = std::vector<double>;

Vec random_vec(size_t n, unsigned seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Vec v(n);
  for (double& x : v) x = normal(random);
  return v;
}

double dot(const Vec& a, const Vec& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// d f / d x against the claimed gradient, relative to its largest entry.
void check_gradient(Vec& x, const Vec& claimed,
                    const std::function<double()>& f) {
  double largest = 0, worst = 0;
  for (const double g : claimed) largest = std::max(largest, std::abs(g));
  BOOST_TEST_REQUIRE(largest > 0);
  for (size_t i = 0; i < x.size(); ++i) {
    const double h = 1e-5, kept = x[i];
    x[i] = kept + h;
    const double high = f();
    x[i] = kept - h;
    const double low = f();
    x[i] = kept;
    worst = std::max(worst, std::abs((high - low) / (2 * h) - claimed[i]));
  }
  BOOST_TEST(worst / largest < 1e-6);
}

BOOST_AUTO_TEST_CASE(rmsnorm_gradient) {
  const Rows size{5, 19};
  Vec x = random_vec(95, 1), w = random_vec(19, 2);
  const Vec dy = random_vec(95, 3);
  Vec y(95), scale(5), dx(95), dw(19);
  const auto f = [&] {
    rmsnorm(size, x.data(), w.data(), y.data(), scale.data());
    return dot(y, dy);
  };
  f();
  double squares = 0;
  for (size_t j = 0; j < 19; ++j) squares += x[j] * x[j];
  BOOST_TEST(std::abs(y[3] - x[3] * w[3] / std::sqrt(squares / 19 + 1e-5)) <
             1e-14);
  rmsnorm_backward(size, x.data(), w.data(), scale.data(), dy.data(), dx.data(),
                   dw.data());
  check_gradient(x, dx, f);
  check_gradient(w, dw, f);
}

BOOST_AUTO_TEST_CASE(rmsnorm_backward_adds_to_the_residual) {
  const Rows size{1, 8};
  Vec x = random_vec(8, 1), w = random_vec(8, 2), y(8), scale(1), dw(8);
  const Vec dy = random_vec(8, 3);
  rmsnorm(size, x.data(), w.data(), y.data(), scale.data());
  Vec plain(8, 0.0), added(8, 1.5);
  for (Vec* dx : {&plain, &added}) {
    rmsnorm_backward(size, x.data(), w.data(), scale.data(), dy.data(),
                     dx->data(), dw.data());
  }
  for (size_t i = 0; i < 8; ++i) {
    BOOST_TEST(std::abs(added[i] - plain[i] - 1.5) < 1e-14);
  }
}

BOOST_AUTO_TEST_CASE(swiglu_gradient) {
  Vec gate = random_vec(33, 4), upper = random_vec(33, 5), y(33);
  const Vec dy = random_vec(33, 6);
  const auto f = [&] {
    swiglu(33, gate.data(), upper.data(), y.data());
    return dot(y, dy);
  };
  f();
  BOOST_TEST(std::abs(y[0] - gate[0] / (1 + std::exp(-gate[0])) * upper[0]) <
             1e-14);
  Vec dgate = gate, dup = upper;
  swiglu_backward(33, dy.data(), dgate.data(), dup.data());
  check_gradient(gate, dgate, f);
  check_gradient(upper, dup, f);
}

BOOST_AUTO_TEST_CASE(rope_turns_pairs_and_back) {
  const int64_t seq = 7, heads = 3, d = 8;
  const Vec x = random_vec(static_cast<size_t>(2 * seq * heads * d), 7);
  Vec y = x;
  const Rope<double> rope(seq, d);
  rope.turn(2 * seq, heads, y.data());
  for (int64_t r = 0; r < 2 * seq; ++r) {
    for (int64_t i = 0; i < heads * d; i += d) {
      for (int64_t j = 0; j < d / 2; ++j) {
        const auto a = static_cast<size_t>(r * heads * d + i + j);
        const size_t b = a + static_cast<size_t>(d) / 2;
        const double angle =
            static_cast<double>(r % seq) *
            std::pow(10000.0, -2.0 * static_cast<double>(j) / double{d});
        BOOST_TEST(std::abs(y[a] - (x[a] * std::cos(angle) -
                                    x[b] * std::sin(angle))) < 1e-13);
        BOOST_TEST(std::abs(y[b] - (x[b] * std::cos(angle) +
                                    x[a] * std::sin(angle))) < 1e-13);
      }
    }
  }
  rope.turn_back(2 * seq, heads, y.data());
  for (size_t i = 0; i < x.size(); ++i) {
    BOOST_TEST(std::abs(x[i] - y[i]) < 1e-13);
  }
}

// Sequences below, at and above the block of 64 rows.
struct AttentionCase {
  AttentionShape s;
  size_t wide() const {
    return static_cast<size_t>(s.samples * s.seq * s.heads * s.head_dim);
  }
  size_t narrow() const {
    return static_cast<size_t>(s.samples * s.seq * s.kv_heads * s.head_dim);
  }
};

Vec naive_attention(const AttentionCase& c, const Vec& q, const Vec& k,
                    const Vec& v) {
  const AttentionShape& s = c.s;
  Vec o(c.wide());
  const auto row = [&](int64_t n, int64_t t, int64_t heads, int64_t h) {
    return static_cast<size_t>(((n * s.seq + t) * heads + h) * s.head_dim);
  };
  for (int64_t n = 0; n < s.samples; ++n) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t g = h / (s.heads / s.kv_heads);
      for (int64_t t = 0; t < s.seq; ++t) {
        Vec e(static_cast<size_t>(t + 1));
        double sum = 0;
        for (int64_t u = 0; u <= t; ++u) {
          double score = 0;
          for (size_t j = 0; j < static_cast<size_t>(s.head_dim); ++j) {
            score +=
                q[row(n, t, s.heads, h) + j] * k[row(n, u, s.kv_heads, g) + j];
          }
          const auto scale = std::sqrt(static_cast<double>(s.head_dim));
          sum += e[static_cast<size_t>(u)] = std::exp(score / scale);
        }
        for (int64_t u = 0; u <= t; ++u) {
          for (size_t j = 0; j < static_cast<size_t>(s.head_dim); ++j) {
            o[row(n, t, s.heads, h) + j] += e[static_cast<size_t>(u)] / sum *
                                            v[row(n, u, s.kv_heads, g) + j];
          }
        }
      }
    }
  }
  return o;
}

struct AttentionRun {
  explicit AttentionRun(const AttentionCase& c)
      : gemm(pool),
        attention(c.s, pool, gemm),
        probs(static_cast<size_t>(attention.probs_count())),
        o(c.wide()) {}
  Pool pool;
  Gemm<double> gemm;
  Attention<double> attention;
  Vec probs, o;
};

BOOST_AUTO_TEST_CASE(attention_equals_the_naive_one) {
  use_one_blas_thread();
  for (const AttentionCase c :
       {AttentionCase{{2, 5, 4, 2, 6}}, AttentionCase{{1, 64, 2, 1, 4}},
        AttentionCase{{2, 131, 3, 3, 8}}, AttentionCase{{1, 1, 4, 1, 2}}}) {
    const Vec q = random_vec(c.wide(), 8), k = random_vec(c.narrow(), 9),
              v = random_vec(c.narrow(), 10);
    AttentionRun run(c);
    run.attention.forward(q.data(), k.data(), v.data(), run.probs.data(),
                          run.o.data());
    const Vec expected = naive_attention(c, q, k, v);
    double worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      worst = std::max(worst, std::abs(expected[i] - run.o[i]));
    }
    BOOST_TEST(worst < 1e-13);
  }
}

BOOST_AUTO_TEST_CASE(attention_gradient) {
  for (const AttentionCase c :
       {AttentionCase{{2, 5, 4, 2, 4}}, AttentionCase{{1, 67, 2, 1, 2}}}) {
    Vec q = random_vec(c.wide(), 11), k = random_vec(c.narrow(), 12),
        v = random_vec(c.narrow(), 13);
    const Vec dout = random_vec(c.wide(), 14);
    AttentionRun run(c);
    const auto f = [&] {
      run.attention.forward(q.data(), k.data(), v.data(), run.probs.data(),
                            run.o.data());
      return dot(run.o, dout);
    };
    f();
    Vec dq(q.size()), dk(k.size()), dv(v.size());
    run.attention.backward({q.data(), k.data(), v.data(), run.probs.data()},
                           {dout.data(), dq.data(), dk.data(), dv.data()});
    check_gradient(q, dq, f);
    check_gradient(k, dk, f);
    check_gradient(v, dv, f);
  }
}

BOOST_AUTO_TEST_CASE(cross_entropy_is_log_softmax) {
  const Rows size{3, 11};
  Vec z = random_vec(33, 15);
  const std::vector<uint8_t> targets = {0, 10, 4};
  double expected = 0;
  for (size_t r = 0; r < 3; ++r) {
    double sum = 0;
    for (size_t j = 0; j < 11; ++j) sum += std::exp(z[r * 11 + j]);
    expected -= std::log(std::exp(z[r * 11 + targets[r]]) / sum);
  }
  const auto f = [&] {
    return cross_entropy<double>(size, targets.data(), z.data());
  };
  BOOST_TEST(std::abs(f() - expected) < 1e-13);
  Vec dz(33);
  cross_entropy_backward(size, targets.data(), 1.0, z.data(), dz.data());
  check_gradient(z, dz, f);
}

BOOST_AUTO_TEST_CASE(fast_exp_is_close) {
  for (float x = -87; x < 88; x += 0.0137f) {
    const double exact = std::exp(static_cast<double>(x));
    BOOST_TEST_REQUIRE(std::abs(exp_of(x) / exact - 1) < 3e-7);
  }
  BOOST_TEST(exp_of(0.0f) == 1.0f);
  BOOST_TEST(exp_of(-1e30f) < 2e-38f);
}

BOOST_AUTO_TEST_CASE(bf16_rounds_to_nearest_even) {
  BOOST_TEST(up(down<Bf16>(1.0f)) == 1.0f);
  BOOST_TEST(up(down<Bf16>(1.00390625f)) == 1.0f);        // tie: down
  BOOST_TEST(up(down<Bf16>(1.01171875f)) == 1.015625f);   // tie: up
  BOOST_TEST(up(down<Bf16>(1.00390637f)) == 1.0078125f);  // just above a tie
  BOOST_TEST(std::isnan(up(down<Bf16>(std::nanf("")))));
  BOOST_TEST(std::isinf(up(down<Bf16>(3.4e38f))));
}

}  // namespace
}  // namespace gpt
