// Sums of factor * source, each rank with a factor of its own.
#include <boost/test/unit_test.hpp>

#include "multi/comm/cases.h"

namespace aliquot::test {
namespace {

double factor_of(int32_t rank) { return 0.3 + 1.7 * rank; }

// The rank's source times its factor, in the dtype the sum is formed in.
template <typename T>
std::vector<T> products(const Buffer& src, int32_t rank) {
  std::vector<T> out(src.size() / sizeof(T));
  std::memcpy(out.data(), src.data(), src.size());
  for (T& x : out) x *= static_cast<T>(factor_of(rank));
  return out;
}

// Of f32 and f64, whose sums are formed in the same dtype.
template <typename T>
Buffer expected(Dtype dtype, int64_t count, int32_t size) {
  std::vector<Buffer> all;
  for (int32_t q = 0; q < size; ++q) {
    std::vector<T> scaled = products<T>(filled(dtype, count, q, 3), q);
    Buffer bytes(scaled.size() * sizeof(T));
    std::memcpy(bytes.data(), scaled.data(), bytes.size());
    all.push_back(std::move(bytes));
  }
  return reduced(all, dtype, dtype, ALQ_SUM);
}

Buffer expected(Dtype dtype, int64_t count, int32_t size) {
  return dtype == ALQ_F64 ? expected<double>(dtype, count, size)
                          : expected<float>(dtype, count, size);
}

void premul(Rank& rank, Dtype dtype, int64_t part, Where where) {
  const int64_t count = part * rank.size, size = dtype_size(dtype);
  Bytes src(rank, where, count * size), dst(rank, where, count * size);
  src.set(filled(dtype, count, rank.rank, 3));
  const Buffer want = expected(dtype, count, rank.size);
  Coll coll;
  coll.dtype = dtype;
  coll.factor = factor_of(rank.rank);
  coll.src = src.data();
  coll.dst = dst.data();
  const Case shown{dtype, count, false, where};

  coll.kind = CollKind::kAllReduce;
  coll.count = count;
  rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "all_reduce");
  check_bits(rank, dst.data(), want, "premultiplied all_reduce", shown);

  coll.kind = CollKind::kReduceScatter;
  coll.count = part;
  rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "reduce_scatter");
  check_bits(rank, dst.data(), slice(want, dtype, rank.rank * part, part),
             "premultiplied reduce_scatter", shown);

  coll.kind = CollKind::kReduce;
  coll.count = count;
  coll.root = rank.size - 1;
  rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "reduce");
  if (rank.rank == coll.root) {
    check_bits(rank, dst.data(), want, "premultiplied reduce", shown);
  }
  coll.kind = CollKind::kAllReduce;
  coll.dst = src.data();
  rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "in place");
  check_bits(rank, src.data(), want, "in place", shown);
}

BOOST_AUTO_TEST_CASE(each_rank_has_its_factor) {
  everywhere({1, 2, 3, 4}, [](Rank& rank) {
    for (Dtype dtype : {ALQ_F32, ALQ_F64}) {
      for (int64_t part : {1, 100, 20'000}) {
        premul(rank, dtype, part, Where::kPrivate);
        premul(rank, dtype, part, Where::kShared);
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(only_floats_and_sums_have_factors) {
  everywhere({2}, [](Rank& rank) {
    int32_t words[4] = {};
    float floats[4] = {};
    Coll coll;
    coll.kind = CollKind::kAllReduce;
    coll.dtype = ALQ_I32;
    coll.count = 4;
    coll.src = coll.dst = words;
    coll.factor = 2.0;
    Status status = rank.group->issue(coll, nullptr, nullptr);
    rank.check(status.code() == ALQ_INVALID_ARGUMENT, "i32 refused");
    coll.dtype = ALQ_F32;
    coll.src = coll.dst = floats;
    coll.op = ALQ_MAX;
    status = rank.group->issue(coll, nullptr, nullptr);
    rank.check(status.code() == ALQ_INVALID_ARGUMENT, "max refused");
    coll.op = ALQ_SUM;
    coll.kind = CollKind::kBroadcast;
    status = rank.group->issue(coll, nullptr, nullptr);
    rank.check(status.code() == ALQ_INVALID_ARGUMENT, "broadcast refused");
  });
}

// A premultiplied sum on one rank and a plain one on the other.
BOOST_AUTO_TEST_CASE(a_factor_on_one_rank_alone_is_a_mismatch) {
  everywhere({2}, [](Rank& rank) {
    float data[4] = {1, 2, 3, 4};
    Coll coll;
    coll.kind = CollKind::kAllReduce;
    coll.dtype = ALQ_F32;
    coll.count = 4;
    coll.src = coll.dst = data;
    if (rank.rank == 1) coll.factor = 1.0;
    Status status = rank.group->issue(coll, nullptr, nullptr);
    rank.check(status.code() == ALQ_RANK_MISMATCH, "refused");
    rank.check(status.message().find("premultiplied") != std::string::npos,
               status.message());
  });
}

}  // namespace
}  // namespace aliquot::test
