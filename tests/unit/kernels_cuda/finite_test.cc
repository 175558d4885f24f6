// The first non-finite element, wherever it is and whoever finds it.
#include "launch.h"

namespace aliquot::kernels {
namespace {

template <typename T>
void check(Dtype dtype, int64_t count, size_t skew, std::vector<int64_t> bad,
           int64_t before) {
  Buffer<T> src(count, skew);
  fill_moderate(src, 3, -2, 2);
  const double kinds[] = {std::numeric_limits<double>::infinity(),
                          std::numeric_limits<double>::quiet_NaN(),
                          -std::numeric_limits<double>::infinity()};
  for (size_t k = 0; k < bad.size(); ++k) {
    src.set(bad[k], convert<T>(kinds[k % 3]));
  }
  int64_t expected = before;
  const FiniteArgs cpu = {&expected, src.data(), count, dtype, 0, 1000};
  run_cpu(OpCode::kFinite, &cpu);
  for_each_grid([&](Grid grid) {
    int64_t got = before;
    const FiniteArgs args = {&got, src.data(), count, dtype, 0, 1000};
    run_cuda(OpCode::kFinite, args, grid);
    BOOST_TEST(got == expected);
  });
}

BOOST_AUTO_TEST_CASE(finite_finds_the_first) {
  for (Dtype dtype : kFloatDtypes) {
    with_float(dtype, [&](auto t) {
      using T = typename decltype(t)::type;
      for (size_t skew : {size_t{0}, sizeof(T), size_t{1}}) {
        for (int64_t count : cuda_counts()) {
          BOOST_TEST_CONTEXT(dtype_name(dtype)
                             << ", count " << count << ", skew " << skew) {
            check<T>(dtype, count, skew, {}, -1);
            if (count == 0) continue;
            check<T>(dtype, count, skew, {count - 1}, -1);
            check<T>(dtype, count, skew, {count / 2, count - 1, count / 3}, -1);
            check<T>(dtype, count, skew, {0, count - 1}, -1);
            check<T>(dtype, count, skew, {count / 2}, 999);
            check<T>(dtype, count, skew, {count / 2}, 100000);
          }
        }
      }
    });
  }
}

}  // namespace
}  // namespace aliquot::kernels
