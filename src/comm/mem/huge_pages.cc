#include "comm/mem/huge_pages.h"

#include <sys/mman.h>

#include <bit>

namespace aliquot::mem {
namespace {

constexpr uint64_t kHuge = uint64_t{1} << 21;
constexpr int kCollapse = 25;  // MADV_COLLAPSE; not in every C library
constexpr uint32_t kRarely = 64;

}  // namespace

bool HugePages::due(uint64_t begin, int64_t bytes) {
  std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.begin != begin || entry.bytes != bytes) continue;
    uint32_t n = ++entry.times;
    return n % kRarely == 0 || (n < kRarely && std::has_single_bit(n));
  }
  entries_[next_] = {begin, bytes, 1};
  next_ = (next_ + 1) % entries_.size();
  return false;
}

int HugePages::comes(const void* data, int64_t bytes) {
  if (bytes < kLeastBytes) return 0;
  auto begin = reinterpret_cast<uint64_t>(data);
  if (!due(begin, bytes)) return 0;
  uint64_t from = (begin + kHuge - 1) / kHuge * kHuge;
  uint64_t to = (begin + static_cast<uint64_t>(bytes)) / kHuge * kHuge;
  if (to > from) {
    madvise(reinterpret_cast<void*>(from), to - from, kCollapse);
  }
  return 1;
}

}  // namespace aliquot::mem
