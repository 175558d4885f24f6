// Private buffers that come again move to huge pages; nothing else changes.
#include "comm/mem/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <fstream>
#include <numeric>
#include <span>
#include <string>

namespace aliquot::mem {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int kCollapse = 25;

class Pages {
 public:
  explicit Pages(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    void* data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BOOST_REQUIRE(data != MAP_FAILED);
    data_ = static_cast<uint32_t*>(data);
    std::iota(values().begin(), values().end(), 1u);
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  std::span<uint32_t> values() const { return {data_, bytes_ / 4}; }
  const uint32_t* data() const { return data_; }
  // Other memory at the same address, as after free() and malloc().
  void map_anew() {
    BOOST_REQUIRE(mmap(data_, bytes_, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                       0) == data_);
    std::iota(values().begin(), values().end(), 1u);
  }

 private:
  size_t bytes_;
  uint32_t* data_;
};

// A line of this process's memory summary, in KiB.
int64_t memory_kib(const std::string& key) {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  int64_t value = 0;
  while (file >> word) {
    if (word == key && file >> value) return value;
  }
  return -1;
}

// Whether it asked.
bool asks(HugePages& huge, const Pages& pages, int64_t bytes) {
  return huge.comes(pages.data(), bytes) == 2;
}

bool system_can() {
  Pages probe(4 * kMiB);
  auto begin = reinterpret_cast<uintptr_t>(probe.data());
  begin = (begin + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
  return madvise(reinterpret_cast<void*>(begin), 2 * kMiB, kCollapse) == 0;
}

BOOST_AUTO_TEST_CASE(a_buffer_that_comes_again_moves_with_its_content) {
  Pages pages(16 * kMiB);
  HugePages huge;
  int64_t huge_before = memory_kib("AnonHugePages:");
  int64_t all_before = memory_kib("Rss:");
  BOOST_TEST(!asks(huge, pages, 16 * kMiB));
  BOOST_TEST(memory_kib("AnonHugePages:") == huge_before);
  BOOST_TEST(asks(huge, pages, 16 * kMiB));
  if (system_can()) {
    // Whole huge pages inside: all but the ends.
    BOOST_TEST(memory_kib("AnonHugePages:") >= huge_before + 14 * 1024);
  }
  BOOST_TEST(memory_kib("Rss:") <= all_before + 1024);
  uint32_t want = 1;
  for (uint32_t value : pages.values()) BOOST_REQUIRE(value == want++);
}

BOOST_AUTO_TEST_CASE(it_asks_rarely_and_only_for_large_buffers) {
  Pages pages(8 * kMiB);
  HugePages huge;
  int calls = 0;
  for (int i = 0; i < 256; ++i) calls += asks(huge, pages, 8 * kMiB) ? 1 : 0;
  BOOST_TEST(calls == 5 + 4);  // 2 4 8 16 32, then 64 128 192 256
  calls = 0;
  for (int i = 0; i < 256; ++i) {
    calls += huge.comes(pages.data(), HugePages::kLeastBytes - 1);
  }
  BOOST_TEST(calls == 0);
}

// After the 4th time it would be asked at the 8th, which does not come.
BOOST_AUTO_TEST_CASE(memory_that_was_mapped_anew_is_asked_for_again) {
  Pages pages(16 * kMiB);
  HugePages huge;
  for (int i = 0; i < 4; ++i) asks(huge, pages, 16 * kMiB);
  BOOST_TEST(!asks(huge, pages, 16 * kMiB));
  int64_t huge_before = memory_kib("AnonHugePages:");
  pages.map_anew();
  if (system_can()) {
    BOOST_TEST(memory_kib("AnonHugePages:") <= huge_before - 14 * 1024);
  }
  // The 4th took microseconds, for nothing was to be done.
  usleep(50'000);
  BOOST_TEST(asks(huge, pages, 16 * kMiB));
  if (system_can()) {
    BOOST_TEST(memory_kib("AnonHugePages:") >= huge_before - 1024);
  }
  // Now it rests, for it had to copy: the 7th time, and no fault since.
  BOOST_TEST(!asks(huge, pages, 16 * kMiB));
  uint32_t want = 1;
  for (uint32_t value : pages.values()) BOOST_REQUIRE(value == want++);
}

BOOST_AUTO_TEST_CASE(many_buffers_and_bad_ranges_do_no_harm) {
  HugePages huge;
  // More ranges than it remembers, none of them mapped.
  for (int round = 0; round < 3; ++round) {
    for (int64_t i = 1; i <= 200; ++i) {
      huge.comes(reinterpret_cast<const void*>(i * 64 * kMiB), 8 * kMiB);
    }
  }
  auto* nowhere = reinterpret_cast<const void*>(uintptr_t{4096});
  for (int i = 0; i < 4; ++i) huge.comes(nowhere, 8 * kMiB);
  BOOST_TEST(huge.comes(nowhere, 0) == 0);
}

}  // namespace
}  // namespace aliquot::mem
