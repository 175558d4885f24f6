// Whether what peers read next is better stored past the caches, tried again
// now and then, for every size of operation by itself.
//
// Cores that share a cache hand each other lines in it while these fit; cores
// that do not are several times faster by way of memory.  calibrate() finds out
// which when the world is made, but a host moves its virtual processors while a
// program runs.  So rank 0 times its operations, and after some equal ones it
// turns the switch that all ranks look at (Header::streamed) for a few more;
// what was faster stays. Cost: two looks at the clock for each operation of
// such a size on rank 0, and at first 1/32, in the long run 1/1024 of the time
// in the slower way.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace aliquot::mem {

// What is chosen for by itself: windows of staged operations and, from 16 KiB
// to 16 MiB in powers of two, results of all-reduces; each by the bytes of a
// rank's part.  Others are as the nearest.
constexpr int32_t kStoreSizes = 10, kStoreKinds = 2 * kStoreSizes;
inline int32_t store_kind(bool staged, int64_t bytes) {
  const auto width =
      static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(bytes)));
  const int32_t size = std::clamp(width - 15, 0, kStoreSizes - 1);
  return staged ? kStoreSizes + size : size;
}

class StoreTrial {
 public:
  // An operation `like` others (its kind, bytes and ranks) took `ns` and ended
  // at `now`. True: turn the switch.
  bool ended(uint64_t like, int64_t ns, int64_t now) {
    if (like != like_) {
      const bool turn_back = trying_;
      like_ = like;
      trying_ = false;
      count_ = 0;
      return turn_back;
    }
    if (trying_) return tried(ns, now);
    usual_[count_++ % kCounted] = ns;
    if (count_ < kCounted || now < next_) return false;
    trying_ = true;
    count_ = 0;
    began_ = now;
    best_ = std::numeric_limits<int64_t>::max();
    return true;
  }

 private:
  static constexpr int32_t kCounted = 4;
  // The first still read what was stored the other way.
  static constexpr int32_t kIgnored = 2;
  static constexpr int64_t kOften = 32, kRarely = 1024;

  bool tried(int64_t ns, int64_t now) {
    if (++count_ <= kIgnored) return false;
    best_ = std::min(best_, ns);
    if (count_ < kIgnored + kCounted) return false;
    const int64_t usual = *std::min_element(usual_, usual_ + kCounted);
    const bool keep = best_ < usual - usual / 16;
    patience_ = keep ? kOften : std::min(2 * patience_, kRarely);
    next_ = now + patience_ * (now - began_);
    trying_ = false;
    count_ = 0;
    return !keep;
  }

  uint64_t like_ = 0;
  int64_t usual_[kCounted] = {};
  int64_t best_ = 0, began_ = 0, next_ = 0, patience_ = kOften;
  uint32_t count_ = 0;
  bool trying_ = false;
};

}  // namespace aliquot::mem
