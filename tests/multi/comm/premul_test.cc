// Sums of factor * source, each rank with a factor of its own, and the limits
// of staging that a world measures.
#include <boost/test/unit_test.hpp>

#include "comm/mem/calibrate.h"
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

// Every rank of the world, and of a group without rank 0, sees the same.
BOOST_AUTO_TEST_CASE(all_ranks_choose_alike) {
  if (kThreadSanitizer) return;
  auto result = run_ranks(options(3, RankKind::kProcesses), [](Rank& rank) {
    Coll barrier;
    rank.check_ok(rank.group->issue(barrier, nullptr, nullptr), "barrier");
    auto split = rank.group->split(rank.rank == 0 ? 0 : 1, 0, "part",
                                   rank.context->deadline(0));
    rank.check_ok(split.status(), "split");
    const PrivateMemory own = (*split)->private_memory();
    rank.check(std::string(own.access) == "read" || rank.rank == 0, own.access);
    if (rank.rank == 1) {
      rank.shared(0).store(own.stage_sums);
      rank.shared(1).store(own.stage_copies);
    }
    rank.check_ok(rank.group->issue(barrier, nullptr, nullptr), "barrier");
    const PrivateMemory world = rank.group->private_memory();
    rank.check(rank.shared(0).load() == world.stage_sums &&
                   rank.shared(1).load() == world.stage_copies,
               fmt::format("{} and {} against {} and {}", world.stage_sums,
                           world.stage_copies, rank.shared(0).load(),
                           rank.shared(1).load()));
    rank.check(world.stage_sums >= 0 && world.stage_sums <= 2 << 20, "bounds");
  });
  BOOST_TEST(result.ok(), result.text());
}

BOOST_AUTO_TEST_CASE(limits_given_are_used) {
  if (kThreadSanitizer) return;
  for (int64_t limit : {0, 1 << 20}) {
    RanksOptions how = options(2, RankKind::kProcesses);
    how.stage_limit = limit;
    auto result = run_ranks(how, [&](Rank& rank) {
      std::vector<float> data(100'000, 1.0f);
      Coll coll;
      coll.kind = CollKind::kAllReduce;
      coll.dtype = ALQ_F32;
      coll.count = static_cast<int64_t>(data.size());
      coll.src = coll.dst = data.data();
      rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "all_reduce");
      rank.check(rank.group->private_memory().stage_sums == limit, "limit");
      // Staging makes no system calls for data.
      GroupStats before = rank.group->stats();
      rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "again");
      GroupStats after = rank.group->stats();
      // The slots' part of bytes differs: a staged sum copies half of src.
      const int64_t read = after.bytes_read - before.bytes_read;
      const int64_t bytes = coll.count * 4;
      const int64_t scratch = limit == 0 ? bytes / 2 : bytes;
      rank.check(std::abs(read - (bytes + bytes / 2 + scratch)) <= 4096,
                 fmt::format("{} bytes read", read));
    });
    BOOST_TEST(result.ok(), result.text());
  }
}

BOOST_AUTO_TEST_CASE(lines_cross_where_they_should) {
  mem::Trials t;
  t.small_bytes = 1000;
  t.large_bytes = 2000;
  // Staging costs 1 more per byte and starts 1500 lower.
  t.staged_small = 1000 + 100;
  t.staged_large = 2000 + 100;
  t.read_small = t.read_large = 1600;
  BOOST_TEST(mem::crossing(t) == 1500);
  // Never, always, and behind: within bounds.
  t.read_small = t.read_large = 50;
  BOOST_TEST(mem::crossing(t) == 0);
  t.read_small = 1e6;
  t.read_large = 3e6;
  BOOST_TEST(mem::crossing(t) == 2 << 20);
  t.staged_small = t.staged_large = 4e6;
  BOOST_TEST(mem::crossing(t) == 0);
}

}  // namespace
}  // namespace aliquot::test
