#include "comm/mem/huge_pages.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <bit>

#include "base/clock.h"

namespace aliquot::mem {
namespace {

constexpr uint64_t kHuge = uint64_t{1} << 21;
constexpr int64_t kPage = 4096;
constexpr int kCollapse = 25;  // MADV_COLLAPSE; not in every C library
constexpr uint32_t kRarely = 64;
constexpr int64_t kRest = 32;  // times what it took

// Page faults of this process that needed no reading.
int64_t faults_now() {
  rusage usage;
  return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_minflt : 0;
}

// Asks for the huge pages that lie in [begin, begin + bytes).
void collapse(uint64_t begin, int64_t bytes) {
  const uint64_t from = (begin + kHuge - 1) / kHuge * kHuge;
  const uint64_t to = (begin + static_cast<uint64_t>(bytes)) / kHuge * kHuge;
  if (to > from) {
    madvise(reinterpret_cast<void*>(from), to - from, kCollapse);
  }
}

}  // namespace

HugePages::Entry& HugePages::entry(uint64_t begin, int64_t bytes) {
  for (Entry& found : entries_) {
    if (found.begin == begin && found.bytes == bytes) return found;
  }
  Entry& made = entries_[next_];
  next_ = (next_ + 1) % entries_.size();
  made = {begin, bytes};
  return made;
}

int HugePages::comes(const void* data, int64_t bytes) {
  if (bytes < kLeastBytes) return 0;
  const auto begin = reinterpret_cast<uint64_t>(data);
  std::lock_guard lock(mutex_);
  Entry& buffer = entry(begin, bytes);
  const uint32_t n = ++buffer.times;
  const bool regular =
      n > 1 && (n % kRarely == 0 || (n < kRarely && std::has_single_bit(n)));
  const int64_t started = now_ns();
  if (!regular && started < buffer.rest_until) return 0;
  const int64_t faults = faults_now();
  const bool renewed = n > 1 && faults - buffer.faults > bytes / kPage / 2;
  if (n == 1) buffer.faults = faults;
  if (!regular && !renewed) return 1;
  collapse(begin, bytes);
  const int64_t ended = now_ns();
  buffer.faults = faults;
  buffer.rest_until = ended + kRest * (ended - started);
  return 2;
}

}  // namespace aliquot::mem
