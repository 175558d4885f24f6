// Accumulation: the CPU's bits for every dtype, alignment and grid.
#include "launch.h"

namespace aliquot::kernels {
namespace {

template <typename To, typename From>
void check(Dtype to, Dtype from, int64_t count, size_t skew_to,
           size_t skew_from) {
  Buffer<From> src(count, skew_from);
  Buffer<To> start(count), expected(count, skew_to);
  fill_random(src, static_cast<uint64_t>(count) + 1);
  fill_random(start, static_cast<uint64_t>(count) + 2);
  expected.copy_from(start);
  const AccumulateArgs cpu = {expected.data(), src.data(), count, to, from};
  run_cpu(OpCode::kAccumulate, &cpu);
  for_each_grid([&](Grid grid) {
    Buffer<To> got(count, skew_to);
    got.copy_from(start);
    const AccumulateArgs args = {got.data(), src.data(), count, to, from};
    run_cuda(OpCode::kAccumulate, args, grid);
    BOOST_TEST(got.first_difference(expected) == -1);
    BOOST_TEST(got.guard_intact());
  });
}

BOOST_AUTO_TEST_CASE(accumulate_has_the_bits_of_the_cpu) {
  for (Dtype to : {ALQ_F32, ALQ_F64}) {
    for (Dtype from : kFloatDtypes) {
      with_float(to, [&](auto t) {
        with_float(from, [&](auto f) {
          using To = typename decltype(t)::type;
          using From = typename decltype(f)::type;
          for (int64_t count : cuda_counts()) {
            BOOST_TEST_CONTEXT(dtype_name(from) << " to " << dtype_name(to)
                                                << ", count " << count) {
              check<To, From>(to, from, count, 0, 0);
              check<To, From>(to, from, count, sizeof(To), sizeof(From));
              check<To, From>(to, from, count, sizeof(To), 0);
              check<To, From>(to, from, count, 2, 1);
            }
          }
        });
      });
    }
  }
}

BOOST_AUTO_TEST_CASE(accumulate_refuses_what_the_cpu_refuses) {
  float x = 1;
  const AccumulateArgs into_half = {&x, &x, 1, ALQ_BF16, ALQ_F32};
  BOOST_TEST(cuda_plan(OpCode::kAccumulate, &into_half, 1).kernel == nullptr);
  const AccumulateArgs of_integers = {&x, &x, 1, ALQ_F32, ALQ_I32};
  BOOST_TEST(cuda_plan(OpCode::kAccumulate, &of_integers, 1).kernel == nullptr);
}

}  // namespace
}  // namespace aliquot::kernels
