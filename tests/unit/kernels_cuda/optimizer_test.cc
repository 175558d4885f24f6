// AdamW and SGD: the CPU's bits for every combination of dtypes, for shards at
// any address, with and without a model, scaled, skipped, by factors in memory.
#include <cmath>

#include "launch.h"

namespace aliquot::kernels {
namespace {

struct Dtypes {
  Dtype master, grad, state, model;
};

// Bytes that each array is off an aligned address, in elements and in bytes.
struct Skew {
  size_t master, grad, state, model, extra;
};
constexpr Skew kSkews[] = {
    {0, 0, 0, 0, 0}, {1, 1, 1, 1, 0}, {0, 1, 0, 3, 0}, {2, 0, 3, 1, 1}};

constexpr StepScalars kScaled = {0.37, 0};
constexpr StepScalars kSkipped = {0.37, 1};
constexpr StepFactors kFactors = {0.9, 0.99, 0.02, 0.1, 0.998, 0.04, 1.7, 1};

// The arrays of a shard, of any dtypes, as bytes.
struct Shard {
  Shard(const Dtypes& d, int64_t count, const Skew& s)
      : master(count * dtype_size(d.master), skew(d.master, s.master, s)),
        grad(count * dtype_size(d.grad), skew(d.grad, s.grad, s)),
        m(count * dtype_size(d.state), skew(d.state, s.state, s)),
        v(count * dtype_size(d.state), skew(d.state, s.state, s)),
        model(count * dtype_size(d.model), skew(d.model, s.model, s)) {
    fill(d.master, master, 1, -4, 4);
    fill(d.grad, grad, 2, 0, 0);
    fill(d.state, m, 3, -1, 1);
    fill(d.state, v, 4, 0, 1);
    fill(d.model, model, 5, -1, 1);
  }

  void check_against(Shard& other) {
    BOOST_TEST(master.first_difference(other.master) == -1);
    BOOST_TEST(m.first_difference(other.m) == -1);
    BOOST_TEST(v.first_difference(other.v) == -1);
    BOOST_TEST(model.first_difference(other.model) == -1);
    for (Buffer<uint8_t>* b : {&master, &grad, &m, &v, &model}) {
      BOOST_TEST(b->guard_intact());
    }
  }

  Buffer<uint8_t> master, grad, m, v, model;

 private:
  static size_t skew(Dtype dtype, size_t elements, const Skew& s) {
    return elements * static_cast<size_t>(dtype_size(dtype)) + s.extra;
  }

  // Random bits and hard values where low equals high.
  static void fill(Dtype dtype, Buffer<uint8_t>& bytes, uint64_t seed,
                   double low, double high) {
    const int64_t count = bytes.count() / dtype_size(dtype);
    with_float(dtype, [&](auto t) {
      Buffer<typename decltype(t)::type> values(count);
      if (low < high) {
        fill_moderate(values, seed, low, high);
      } else {
        fill_random(values, seed);
      }
      std::memcpy(bytes.data(), values.data(),
                  static_cast<size_t>(bytes.count()));
    });
  }
};

AdamWArgs adamw_args(Shard& s, const Dtypes& d, int64_t count, bool model) {
  AdamWArgs a = {};
  a.master = s.master.data();
  a.model = model ? s.model.data() : nullptr;
  a.grad = s.grad.data();
  a.m = s.m.data();
  a.v = s.v.data();
  a.count = count;
  a.master_dtype = d.master;
  a.grad_dtype = d.grad;
  a.state_dtype = d.state;
  a.model_dtype = d.model;
  a.beta1 = 0.9;
  a.one_minus_beta1 = 1 - 0.9;
  a.beta2 = 0.99;
  a.one_minus_beta2 = 1 - 0.99;
  a.decay = 1 - 1e-3;
  a.step_size = 0.02;
  a.inv_sqrt_bc2 = 3.3;
  a.eps = 1e-8;
  return a;
}

template <typename F>
void for_each_dtypes(F f) {
  for (Dtype master : {ALQ_F32, ALQ_F64}) {
    for (Dtype grad : kFloatDtypes) {
      for (Dtype state : kFloatDtypes) {
        for (Dtype model : kFloatDtypes) {
          const Dtypes d = {master, grad, state, model};
          BOOST_TEST_CONTEXT("master " << dtype_name(master) << ", grad "
                                       << dtype_name(grad) << ", state "
                                       << dtype_name(state) << ", model "
                                       << dtype_name(model)) {
            f(d);
          }
        }
      }
    }
  }
}

// make_args(shard) -> Args of the operation.
template <typename MakeArgs>
void check(OpCode op, const Dtypes& d, int64_t count, const Skew& skew,
           MakeArgs make_args) {
  Shard expected(d, count, skew);
  const auto cpu = make_args(expected);
  run_cpu(op, &cpu);
  for_each_grid([&](Grid grid) {
    Shard got(d, count, skew);
    run_cuda(op, make_args(got), grid);
    got.check_against(expected);
  });
}

void check_adamw(const Dtypes& d, int64_t count, const Skew& skew) {
  for (int variant = 0; variant < 4; ++variant) {
    check(OpCode::kAdamW, d, count, skew, [&](Shard& s) {
      AdamWArgs a = adamw_args(s, d, count, variant != 1);
      if (variant == 1) a.scalars = &kScaled;
      if (variant == 2) a.factors = &kFactors;
      if (variant == 3) a.scalars = &kSkipped;
      return a;
    });
  }
}

BOOST_AUTO_TEST_CASE(adamw_has_the_bits_of_the_cpu) {
  for_each_dtypes([&](const Dtypes& d) {
    for (const Skew& skew : kSkews) {
      for (int64_t count : {0, 1, 5, 67, 517}) check_adamw(d, count, skew);
    }
  });
}

SgdArgs sgd_args(Shard& s, const Dtypes& d, int64_t count, int variant) {
  SgdArgs a = {};
  a.master = s.master.data();
  a.model = variant % 2 == 0 ? s.model.data() : nullptr;
  a.grad = s.grad.data();
  a.momentum_buffer = variant >= 2 ? s.m.data() : nullptr;
  a.scalars = variant == 3 ? &kScaled : nullptr;
  a.factors = variant == 4 ? &kFactors : nullptr;
  if (variant == 6) a.scalars = &kSkipped;
  a.count = count;
  a.master_dtype = d.master;
  a.grad_dtype = d.grad;
  a.state_dtype = d.state;
  a.model_dtype = d.model;
  a.lr = 0.01;
  a.weight_decay = variant == 1 ? 0 : 0.1;
  a.momentum = 0.9;
  a.dampening = variant == 5 ? 0.25 : 0;
  a.nesterov = variant == 5 || variant == 2 ? 1 : 0;
  a.first = variant == 2 ? 1 : 0;
  return a;
}

BOOST_AUTO_TEST_CASE(sgd_has_the_bits_of_the_cpu) {
  for_each_dtypes([&](const Dtypes& d) {
    for (const Skew& skew : kSkews) {
      for (int64_t count : {0, 1, 67, 517}) {
        for (int variant = 0; variant < 7; ++variant) {
          check(OpCode::kSgd, d, count, skew,
                [&](Shard& s) { return sgd_args(s, d, count, variant); });
        }
      }
    }
  });
}

}  // namespace
}  // namespace aliquot::kernels
