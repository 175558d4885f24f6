#include "kernels/arithmetic/combine.h"
#include "support.h"

namespace aliquot::kernels {
namespace {

template <typename To, typename From>
void check_accumulate(Dtype to, Dtype from, int64_t count) {
  Buffer<From> src(count, sizeof(From));
  Buffer<To> dst(count), expected(count);
  fill_random(src, static_cast<uint64_t>(count));
  fill_random(dst, static_cast<uint64_t>(count) + 99);
  for (int64_t i = 0; i < count; ++i) {
    expected.set(i, canonical(dst.get(i) + convert<To>(src.get(i))));
  }
  AccumulateArgs args = {dst.data(), src.data(), count, to, from};
  run_cpu(OpCode::kAccumulate, &args);
  BOOST_TEST(dst.first_difference(expected) == -1,
             dtype_name(to)
                 << " += " << dtype_name(from) << ", count " << count);
  BOOST_TEST(dst.guard_intact());
}

BOOST_AUTO_TEST_CASE(accumulate_all_pairs) {
  for_each_target([] {
    for (Dtype from : kFloatDtypes) {
      with_float(from, [&](auto f) {
        using From = typename decltype(f)::type;
        for (int64_t count : test_counts()) {
          check_accumulate<float, From>(ALQ_F32, from, count);
          check_accumulate<double, From>(ALQ_F64, from, count);
        }
      });
    }
  });
}

BOOST_AUTO_TEST_CASE(accumulate_onto_itself_doubles) {
  Buffer<float> data(77);
  fill_moderate(data, 3, -1, 1);
  Buffer<float> expected(77);
  for (int64_t i = 0; i < 77; ++i) expected.set(i, 2 * data.get(i));
  AccumulateArgs args = {data.data(), data.data(), 77, ALQ_F32, ALQ_F32};
  run_cpu(OpCode::kAccumulate, &args);
  BOOST_TEST(data.first_difference(expected) == -1);
}

}  // namespace
}  // namespace aliquot::kernels
