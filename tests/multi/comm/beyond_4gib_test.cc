// One collective of more than 2^32 bytes, on private memory of two processes.
#define BOOST_TEST_MODULE beyond_4gib
#include <sys/mman.h>

#include <boost/test/unit_test.hpp>
#include <fstream>

#include "support/ranks.h"

namespace aliquot::test {
namespace {

constexpr int64_t kBytes = (int64_t{1} << 32) + 4097;

int64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  int64_t value = 0;
  while (file >> word) {
    if (word == "MemAvailable:" && file >> value) return value * 1024;
  }
  return 0;
}

uint8_t pattern(int64_t i, int32_t rank) {
  return static_cast<uint8_t>((i ^ (i >> 9) ^ (i >> 23)) + 77 * rank);
}

void sum_and_send(Rank& rank) {
  void* pages = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  rank.check(pages != MAP_FAILED, "mmap");
  if (pages == MAP_FAILED) return;
  madvise(pages, kBytes, MADV_HUGEPAGE);
  auto* data = static_cast<uint8_t*>(pages);
  for (int64_t i = 0; i < kBytes; ++i) data[i] = pattern(i, rank.rank);
  Coll coll;
  coll.kind = CollKind::kAllReduce;
  coll.dtype = ALQ_U8;
  coll.count = kBytes;
  coll.src = coll.dst = data;
  rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "all_reduce");
  int64_t wrong = 0;
  for (int64_t i = 0; i < kBytes; ++i) {
    wrong += data[i] != static_cast<uint8_t>(pattern(i, 0) + pattern(i, 1));
  }
  rank.check(wrong == 0, fmt::format("{} elements of the sum", wrong));
  if (rank.rank == 1) {
    for (int64_t i = 0; i < kBytes; ++i) data[i] = pattern(i, 5);
  }
  coll.kind = CollKind::kBroadcast;
  coll.root = 1;
  rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "broadcast");
  wrong = 0;
  for (int64_t i = 0; i < kBytes; ++i) wrong += data[i] != pattern(i, 5);
  rank.check(wrong == 0, fmt::format("{} elements sent", wrong));
  munmap(pages, kBytes);
}

BOOST_AUTO_TEST_CASE(more_than_32_bits_of_bytes) {
  if (available_bytes() < 3 * kBytes) {
    BOOST_TEST_MESSAGE("skipped: needs " << 3 * kBytes << " bytes of memory");
    return;
  }
  RanksOptions how = options(2, RankKind::kProcesses);
  how.timeout_ms = 200'000;
  how.deadline_ms = 100'000;
  auto result = run_ranks(how, sum_and_send);
  BOOST_TEST(result.ok(), result.text());
}

}  // namespace
}  // namespace aliquot::test
