// Which way data goes from rank to rank where there is a choice, tried again
// now and then, for every kind and size of operation by itself.
//
// What peers read next is stored through the caches or past them: cores that
// share a cache hand each other lines in it while these fit, and cores that do
// not are several times faster by way of memory.  Private memory is staged in
// either of these ways, or read by a system call, which is faster for large
// buffers on huge pages.  calibrate() finds a first answer when the world is
// made, but a host moves its virtual processors while a program runs, and
// buffers change their pages.  So rank 0 times its operations, and after some
// equal ones it lets a few more go another way; what was faster stays.
//
// Cost: two looks at the clock for each operation of such a size on rank 0, and
// for each other way at first 1/32, in the long run 1/1024 of the time in it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace aliquot::mem {

enum Way : uint8_t {
  kAsMeasured,  // by calibrate()
  kCached,      // stored through the caches
  kStreamed,    // stored past them
  // Not stored: peers read private memory where it is.  Results that they read
  // next are stored through the caches, or past them.
  kRead,
  kReadStreamed,
  kWays
};
constexpr uint32_t kStores = 1u << kCached | 1u << kStreamed;
inline bool reads(Way way) { return way == kRead || way == kReadStreamed; }

// What is chosen for by itself: results of all-reduces that peers map, and what
// ranks have for each other in private memory: to be added and then copied, as
// in all-reduces, to be added, or to be copied; each from 16 KiB to 32 MiB of a
// rank's part, in powers of two.  Others are as the nearest.
enum class Moved { kResults, kReduced, kSums, kCopies };
constexpr int32_t kMovedSizes = 12, kMovedKinds = 4 * kMovedSizes;
inline int32_t moved_kind(Moved what, int64_t bytes) {
  const auto width =
      static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(bytes)));
  return static_cast<int32_t>(what) * kMovedSizes +
         std::clamp(width - 15, 0, kMovedSizes - 1);
}

class WayTrial {
 public:
  // An operation `like` others (its kind, bytes and ranks) went one of the
  // `possible` ways (a set of bits), took `ns` and ended at `now`.  Returns the
  // way of the next ones.
  Way ended(Way way, uint32_t possible, uint64_t like, int64_t ns,
            int64_t now) {
    if (like != like_) {
      like_ = like;
      now_ = usual_way_ = trying() ? usual_way_ : way;
      count_ = 0;
      for (Other& other : others_) other.soon(now);
      return now_;
    }
    if (way != now_) return now_;  // it began before the change
    if (trying()) return tried(ns, now);
    usual_[count_++ % kCounted] = ns;
    if (count_ < kCounted) return now_;
    const Way other = due(possible, now);
    if (other == kAsMeasured) return now_;
    now_ = other;
    count_ = 0;
    began_ = now;
    best_ = std::numeric_limits<int64_t>::max();
    return now_;
  }

 private:
  static constexpr int32_t kCounted = 4;
  // The first still read what was stored the other way.
  static constexpr int32_t kIgnored = 2;
  static constexpr int64_t kOften = 32, kRarely = 1024;

  // When a way is due again, and how long it is left alone after a trial, in
  // times that this took.
  struct Other {
    int64_t next = 0, patience = kOften, took = 0;

    void leave_alone(int64_t now) { next = now + patience * took; }
    // What was found of other operations says less of these.
    void soon(int64_t now) {
      patience = kOften;
      next = std::min(next, now + patience * took);
    }
  };

  bool trying() const { return now_ != usual_way_; }

  // The way that has waited longest for its trial, kAsMeasured: none is due.
  Way due(uint32_t possible, int64_t now) const {
    Way found = kAsMeasured;
    for (uint8_t w = kCached; w < kWays; ++w) {
      if ((possible >> w & 1) == 0 || w == now_ || now < others_[w].next) {
        continue;
      }
      if (found == kAsMeasured || others_[w].next < others_[found].next) {
        found = static_cast<Way>(w);
      }
    }
    return found;
  }

  Way tried(int64_t ns, int64_t now) {
    if (++count_ <= kIgnored) return now_;
    best_ = std::min(best_, ns);
    const int64_t usual = *std::min_element(usual_, usual_ + kCounted);
    const bool hopeless = best_ > usual + usual / 2;
    if (count_ < kIgnored + kCounted && !hopeless) return now_;
    const bool keep = best_ < usual - usual / 16;
    Other& loser = others_[keep ? usual_way_ : now_];
    loser.patience = keep ? kOften : std::min(2 * loser.patience, kRarely);
    loser.took = now - began_;
    loser.leave_alone(now);
    now_ = usual_way_ = keep ? now_ : usual_way_;
    count_ = 0;
    return now_;
  }

  uint64_t like_ = 0;
  Way usual_way_ = kAsMeasured, now_ = kAsMeasured;
  int64_t usual_[kCounted] = {};
  int64_t best_ = 0, began_ = 0;
  Other others_[kWays];
  int32_t count_ = 0;
};

}  // namespace aliquot::mem
