// Reductions against a scalar loop, bit for bit: every dtype, operation, number
// of sources, scale, add, alias.
#include <fmt/format.h>

#include "kernels/arithmetic/combine.h"
#include "support.h"

namespace aliquot::kernels {
namespace {

struct Case {
  Dtype in, out;
  alq_reduce_op op;
  int64_t n, count;
  double scale = 1.0;
  int32_t add = 0;
  int64_t alias = -1;  // dst is this source
};

std::string describe(const Case& c) {
  return fmt::format("{} to {}, op {}, n {}, count {}, scale {}, add {}, {}",
                     dtype_name(c.in), dtype_name(c.out), c.op, c.n, c.count,
                     c.scale, c.add, c.alias);
}

template <typename T>
T combine(alq_reduce_op op, T acc, T x) {
  if (op == ALQ_SUM) return combine_sum(acc, x);
  return op == ALQ_MIN ? combine_min(acc, x) : combine_max(acc, x);
}

template <typename T, typename S>
T widen(S x) {
  if constexpr (std::is_integral_v<T>)
    return x;
  else
    return convert<T>(x);
}

template <typename In, typename Out>
Out reduce_element(const Case& c, std::vector<Buffer<In>>& srcs, int64_t i,
                   Out before) {
  constexpr bool kF64 =
      std::is_same_v<In, double> || std::is_same_v<Out, double>;
  using Float = std::conditional_t<kF64, double, float>;
  using T = std::conditional_t<std::is_integral_v<In>, In, Float>;
  T acc = widen<T>(srcs[0].get(i));
  for (size_t k = 1; k < srcs.size(); ++k) {
    acc = combine(c.op, acc, widen<T>(srcs[k].get(i)));
  }
  if constexpr (std::is_integral_v<T>) {
    return c.add != 0 ? combine_sum(before, acc) : acc;
  } else {
    if (c.op == ALQ_SUM) acc = acc * static_cast<T>(c.scale);
    if (c.add != 0) acc = widen<T>(before) + acc;
    return convert<Out>(canonical(acc));
  }
}

template <typename In, typename Out>
void check_reduce(const Case& c) {
  std::vector<Buffer<In>> srcs;
  std::vector<const void*> pointers;
  for (int64_t k = 0; k < c.n; ++k) {
    const size_t skew = static_cast<size_t>(k % 3) * sizeof(In);
    srcs.emplace_back(c.count, skew);
    fill_random(srcs.back(), static_cast<uint64_t>(100 * k + c.count));
  }
  for (auto& src : srcs) pointers.push_back(src.data());
  Buffer<Out> own(c.count, sizeof(Out)), expected(c.count);
  fill_random(own, 77);
  Buffer<Out>* dst = &own;
  if constexpr (std::is_same_v<In, Out>) {
    if (c.alias >= 0) dst = &srcs[static_cast<size_t>(c.alias)];
  }
  for (int64_t i = 0; i < c.count; ++i) {
    expected.set(i, reduce_element<In, Out>(c, srcs, i, dst->get(i)));
  }
  reduce_cpu({dst->data(), pointers.data(), c.n, c.count, c.in, c.out, c.op,
              c.add, c.scale});
  const int64_t bad = dst->first_difference(expected);
  BOOST_TEST(bad == -1, describe(c) << ": element " << bad);
  BOOST_TEST(dst->guard_intact());
}

template <typename In, typename Out>
void check_all_operations(Case c) {
  for (alq_reduce_op op : {ALQ_SUM, ALQ_MIN, ALQ_MAX}) {
    c.op = op;
    for (int64_t n : {1, 2, 3, 4, 5, 8, 9}) {
      c.n = n;
      c.count = 70 - n;
      check_reduce<In, Out>(c);
    }
  }
}

BOOST_AUTO_TEST_CASE(reduce_floats_to_every_dtype) {
  for_each_target([] {
    for (Dtype in : kFloatDtypes) {
      for (Dtype out : kFloatDtypes) {
        with_float(in, [&](auto i) {
          with_float(out, [&](auto o) {
            using In = typename decltype(i)::type;
            using Out = typename decltype(o)::type;
            check_all_operations<In, Out>({in, out, ALQ_SUM, 1, 0});
            check_all_operations<In, Out>({in, out, ALQ_SUM, 1, 0, 1.0 / 3, 1});
          });
        });
      }
    }
  });
}

template <typename T>
void check_integer(Dtype dtype) {
  check_all_operations<T, T>({dtype, dtype, ALQ_SUM, 1, 0});
  check_all_operations<T, T>({dtype, dtype, ALQ_SUM, 1, 0, 1.0, 1});
}

BOOST_AUTO_TEST_CASE(reduce_integers) {
  for_each_target([] {
    check_integer<int8_t>(ALQ_I8);
    check_integer<int16_t>(ALQ_I16);
    check_integer<int32_t>(ALQ_I32);
    check_integer<int64_t>(ALQ_I64);
    check_integer<uint8_t>(ALQ_U8);
    check_integer<uint16_t>(ALQ_U16);
    check_integer<uint32_t>(ALQ_U32);
    check_integer<uint64_t>(ALQ_U64);
  });
}

BOOST_AUTO_TEST_CASE(reduce_every_count) {
  for_each_target([] {
    for (int64_t count : test_counts()) {
      for (int64_t n : {2, 3}) {
        check_reduce<float, float>({ALQ_F32, ALQ_F32, ALQ_SUM, n, count});
        check_reduce<BF16, BF16>({ALQ_BF16, ALQ_BF16, ALQ_SUM, n, count, 0.5});
        check_reduce<F16, float>({ALQ_F16, ALQ_F32, ALQ_SUM, n, count});
        check_reduce<float, BF16>({ALQ_F32, ALQ_BF16, ALQ_MAX, n, count});
        check_reduce<uint8_t, uint8_t>({ALQ_U8, ALQ_U8, ALQ_MIN, n, count});
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(reduce_onto_a_source) {
  for_each_target([] {
    for (int64_t n : {1, 2, 4, 7}) {
      for (int64_t alias = 0; alias < n; ++alias) {
        check_reduce<float, float>(
            {ALQ_F32, ALQ_F32, ALQ_SUM, n, 1003, 0.25, 1, alias});
        check_reduce<BF16, BF16>(
            {ALQ_BF16, ALQ_BF16, ALQ_SUM, n, 1003, 1.0, 0, alias});
        check_reduce<int64_t, int64_t>(
            {ALQ_I64, ALQ_I64, ALQ_MAX, n, 1003, 1.0, 0, alias});
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(reduce_narrows_in_place) {
  for_each_target([] {
    Buffer<float> a(999), b(999), copy(999);
    fill_random(a, 1);
    fill_random(b, 2);
    copy.copy_from(a);
    const void* srcs[2] = {a.data(), b.data()};
    reduce_cpu({a.data(), srcs, 2, 999, ALQ_F32, ALQ_BF16, ALQ_SUM, 0, 1.0});
    for (int64_t i = 0; i < 999; ++i) {
      BF16 got;
      std::memcpy(&got, reinterpret_cast<char*>(a.data()) + 2 * i, 2);
      const float sum = canonical(copy.get(i) + b.get(i));
      BOOST_REQUIRE_EQUAL(got.bits, f32_to_bf16(sum).bits);
    }
  });
}

// Sums go source by source: (1e8 + 1) - 1e8 is 0 in f32, not 1.
BOOST_AUTO_TEST_CASE(reduce_sums_in_source_order) {
  for_each_target([] {
    const float a = 1e8f, b = 1.0f, c = -1e8f;
    const void* forward[3] = {&a, &b, &c};
    const void* other[3] = {&a, &c, &b};
    float sum = -1;
    reduce_cpu({&sum, forward, 3, 1, ALQ_F32, ALQ_F32, ALQ_SUM, 0, 1.0});
    BOOST_TEST(sum == 0.0f);
    reduce_cpu({&sum, other, 3, 1, ALQ_F32, ALQ_F32, ALQ_SUM, 0, 1.0});
    BOOST_TEST(sum == 1.0f);
  });
}

BOOST_AUTO_TEST_CASE(reduce_refuses_what_it_cannot) {
  BOOST_TEST(!reduce_supported(ALQ_BOOL, ALQ_BOOL, ALQ_SUM));
  BOOST_TEST(!reduce_supported(ALQ_I32, ALQ_F32, ALQ_SUM));
  BOOST_TEST(!reduce_supported(ALQ_F32, ALQ_F32, ALQ_AVG));
  BOOST_TEST(reduce_supported(ALQ_BF16, ALQ_F64, ALQ_MIN));
  const float one = 1;
  const void* srcs[1] = {&one};
  float dst = 5;
  reduce_cpu({&dst, srcs, 1, 1, ALQ_F32, ALQ_F32, ALQ_AVG, 0, 1.0});
  BOOST_TEST(dst == 5);
}

}  // namespace
}  // namespace aliquot::kernels
