// Segment: memory of one rank that other ranks of the host can map.
//
// A segment is a sealed memfd; it never has a name, so nothing is left behind
// when its owner is killed, and it can not shrink, so a reader never gets
// SIGBUS.  Others open it through the owner's /proc entry and prove with a
// nonce in its last page that it is the one they mean.  Within the owner's
// process the segment itself is handed out, so ranks that are threads of one
// process see equal addresses.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"

namespace aliquot {

// How another rank finds a segment.
struct SegmentRef {
  int32_t pid = 0, fd = -1;
  uint64_t nonce = 0;
  int64_t bytes = 0;  // of data
};

class Segment {
 public:
  // Zeroed; touch: all pages are backed on return, else see touch().
  static Result<std::shared_ptr<Segment>> create(int64_t bytes,
                                                 const std::string& label,
                                                 bool touch);
  // Maps a segment of any process of this host; one mapping per process.
  static Result<std::shared_ptr<Segment>> attach(const SegmentRef& ref);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // Backs the pages of part `nth` of `of` equal ones: memory is near, and
  // counts as the memory of, whom it was touched by.
  void touch(int64_t nth, int64_t of);

  std::byte* data() const { return data_; }
  int64_t bytes() const { return ref_.bytes; }
  const SegmentRef& ref() const { return ref_; }

  // Called with the nonce when the owner frees it.
  void on_free(std::function<void(uint64_t)> hook) { hook_ = std::move(hook); }

 private:
  Segment() = default;
  SegmentRef ref_;
  std::byte* data_ = nullptr;
  int64_t mapped_ = 0;
  int fd_ = -1;  // the owner's
  std::function<void(uint64_t)> hook_;
};

// The segments that hold a rank's own memory, found by address.
class SegmentTable {
 public:
  // owned: this rank made it, and tells peers when it is freed.
  void add(std::shared_ptr<Segment> segment, bool owned);
  void remove(const std::byte* data);
  // The segment that holds all of [data, data + bytes), or null.
  std::shared_ptr<Segment> find(const void* data, int64_t bytes) const;

  // Called with the nonce of each segment freed from now on.  What it returns
  // is let go after the call: its end may set another hook.
  using OnFree = std::function<std::shared_ptr<void>(uint64_t)>;
  void set_on_free(OnFree hook);

 private:
  struct Hook {
    std::mutex mutex;
    OnFree call;
  };
  std::shared_ptr<Hook> hook_ = std::make_shared<Hook>();
  mutable std::mutex mutex_;
  std::map<uintptr_t, std::shared_ptr<Segment>> segments_;
};

// Random, never 0.
uint64_t random_nonce();

}  // namespace aliquot
