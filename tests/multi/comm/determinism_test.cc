// A sum depends on its elements and on nothing else: equal bytes for every
// bucket size, way of moving data and arrival order, and those of one process.
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <random>

#include "multi/comm/cases.h"

namespace aliquot::test {
namespace {

constexpr int64_t kElements = 30'011;
constexpr int64_t kBuckets[] = {kElements, 7'001, 3'000};
constexpr int kRuns = kSanitized ? 2 : 20;

struct Transport {
  const char* name;
  RankKind kind;
  bool reads;           // process_vm_readv
  int64_t stage_limit;  // bytes
  Where where;
};
const Transport kTransports[] = {
    {"threads", RankKind::kThreads, true, -1, Where::kPrivate},
    {"processes, shared", RankKind::kProcesses, true, -1, Where::kShared},
    {"processes, read", RankKind::kProcesses, true, 0, Where::kPrivate},
    {"processes, staged", RankKind::kProcesses, false, -1, Where::kPrivate},
    {"processes, staged below 8 KiB", RankKind::kProcesses, true, 8192,
     Where::kPrivate},
};

void arrive_late(std::mt19937& rng) {
  std::uniform_int_distribution<int> most(0, 3), late(0, 150);
  if (most(rng) == 0) usleep(static_cast<useconds_t>(late(rng)));
}

// All elements of `in` over all ranks, a bucket at a time.
void reduce_in_buckets(Rank& rank, const std::byte* in, std::byte* out,
                       Dtype dtype, int64_t bucket, std::mt19937& rng) {
  const int64_t size = dtype_size(dtype);
  for (int64_t at = 0; at < kElements; at += bucket) {
    Coll coll;
    coll.kind = CollKind::kAllReduce;
    coll.dtype = dtype;
    coll.count = std::min(bucket, kElements - at);
    coll.src = in + at * size;
    coll.dst = out + at * size;
    arrive_late(rng);
    rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "all_reduce");
  }
}

void same_bytes(Rank& rank, Dtype dtype, const Transport& transport) {
  std::vector<Buffer> all;
  for (int32_t q = 0; q < rank.size; ++q) {
    all.push_back(filled(dtype, kElements, q, 42));
  }
  const Buffer want = reduced(all, dtype, dtype, ALQ_SUM);
  const auto bytes = static_cast<int64_t>(want.size());
  Bytes in(rank, transport.where, bytes), out(rank, transport.where, bytes);
  in.set(all[static_cast<size_t>(rank.rank)]);
  for (int run = 0; run < kRuns; ++run) {
    std::mt19937 rng(static_cast<uint32_t>(run * 64 + rank.rank));
    for (int64_t bucket : kBuckets) {
      std::memset(out.data(), 0xee, want.size());
      reduce_in_buckets(rank, in.data(), out.data(), dtype, bucket, rng);
      std::string diff = difference(out.data(), want);
      rank.check(diff.empty(),
                 fmt::format("{} run {}, buckets of {}: {}", dtype_name(dtype),
                             run, bucket, diff));
    }
  }
}

BOOST_AUTO_TEST_CASE(sums_depend_on_their_elements_alone) {
  for (const Transport& transport : kTransports) {
    if (kThreadSanitizer && transport.kind != RankKind::kThreads) continue;
    for (int32_t size : {2, 4}) {
      RanksOptions how = options(size, transport.kind);
      how.cma = transport.reads;
      how.stage_limit = transport.stage_limit;
      auto result = run_ranks(how, [&](Rank& rank) {
        same_bytes(rank, ALQ_F32, transport);
        same_bytes(rank, ALQ_BF16, transport);
      });
      BOOST_TEST(result.ok(),
                 size << " ranks, " << transport.name << ": " << result.text());
    }
  }
}

// Up to the most ranks there can be.
void smoke(Rank& rank) {
  for (int64_t count : {1, 700, 5000}) {
    std::vector<Buffer> all;
    for (int32_t q = 0; q < rank.size; ++q) {
      all.push_back(filled(ALQ_F32, count, q, 7));
    }
    Buffer data = all[static_cast<size_t>(rank.rank)];
    Coll coll;
    coll.kind = CollKind::kAllReduce;
    coll.dtype = ALQ_F32;
    coll.count = count;
    coll.src = coll.dst = data.data();
    rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "all_reduce");
    std::string diff =
        difference(data.data(), reduced(all, ALQ_F32, ALQ_F32, ALQ_SUM));
    rank.check(diff.empty(), fmt::format("{} elements: {}", count, diff));
  }
}

BOOST_AUTO_TEST_CASE(from_one_rank_to_the_most) {
  std::vector<int32_t> sizes = {1, 2, 3, 7, 16, 33, 64};
  if (kSanitized) sizes = {1, 2, 7, 16};
  everywhere(sizes, smoke);
}

}  // namespace
}  // namespace aliquot::test
