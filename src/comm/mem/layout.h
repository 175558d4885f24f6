// The control block of a group: what its ranks share besides data.  Plain
// memory, atomics and numbers only; no pointers that mean something elsewhere.
//
// Protocol.  Operations of a group are numbered 1, 2, ... in issue order.  Rank
// r announces operation n by filling slot n % 2 and storing n in its `seq`.  It
// says `done = n` when it has read all it needs from its peers.  A rank moves
// on to n only after finishing n - 1, and finishes n - 1 only after all peers
// have announced it, so all are done with n - 2: two slots suffice and nothing
// is ever reset.
//
// Everything here may be written by a peer that is broken: values are compared,
// never used as an index or a loop bound unchecked.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/written_once.h"
#include "comm/call.h"
#include "comm/mem/way_trial.h"
#include "device/cpu/bell.h"
#include "device/cpu/segment.h"

namespace aliquot::mem {

constexpr int32_t kMaxRanks = 64;
constexpr int64_t kInlineBytes = 4096;    // payload that travels in the slot
constexpr int64_t kStageBytes = 1048576;  // a rank's staging windows
constexpr uint64_t kControlMagic = 0x316b636f6c627141;
constexpr uint32_t kProtocolVersion = 7;

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(kMaxRanks <= 64);  // sets of ranks are words

struct alignas(64) Line {
  std::atomic<uint64_t> value{0};
};

// Where data lies, as its owner sees it.
struct Location {
  int64_t bytes;
  uint64_t nonce;  // of the segment
  uint64_t at;     // in the segment, or in the owner's address space
  uint32_t kind;   // LocationKind
  uint32_t reserved;
};
enum LocationKind : uint8_t {
  kNowhere,
  kInSegment,
  kPrivate,
  kInSlot,
  kAsSource,  // of a result: there
};
// How to map its segment, of interest once.
struct Backing {
  int32_t pid, fd;
  int64_t segment_bytes;
};

// What a rank announces of an operation.  A line that is written has to be
// fetched by every peer again: what every operation needs lies together.
struct alignas(64) Slot {
  std::atomic<uint64_t> seq{0};
  uint64_t hash[2];  // of the call
  Location src;
  LocationKind dst_kind;  // of an all-reduce, else nowhere
  // Rank 0's choice for all: where ranks map all memory, and where they do not.
  Way mapped_way, private_way;
  alignas(64) Location dst;  // its kind is above
  Backing src_backing, dst_backing;
  alignas(64) Call call;
  double factor;               // of a premultiplied sum; each rank has its own
  alignas(64) char label[16];  // of the call; the end of a long one
  alignas(64) std::byte payload[kInlineBytes];
};
static_assert(offsetof(Slot, private_way) < 64 && offsetof(Slot, dst) == 64 &&
              offsetof(Slot, call) == 128 && offsetof(Slot, label) == 192);

// When a rank last was in an operation: coarse_ns(); and for which world rank
// it waits there, plus 1; 0: for none, or not for long.
struct alignas(64) Seen {
  std::atomic<int64_t> at{0};
  std::atomic<int32_t> awaits{0};
};

// What a rank waits in, as text for its peers' errors.  Written when a wait is
// long, read when one is too long.  version is odd while the text changes.
struct alignas(64) Whereabouts {
  static constexpr int kWords = 15;
  std::atomic<uint64_t> version{0};
  std::atomic<uint64_t> text[kWords];
};

// One rank's words, a cache line each, written by that rank alone.
struct Member {
  Line done;     // operation whose reads are finished
  Line reduced;  // operation whose own chunk is in place
  Line staged;   // windows published (ticket())
  Line reading;  // how many operations read peers' memory now
  Line writing;  // operation whose peers' memory is being written, else 0
  Line state;    // MemberState
  Line freed;    // segments freed; see Freed
  // Of the world's block alone.
  Seen seen;
  Whereabouts now;
};
enum MemberState : uint64_t { kAbsent, kAttached, kClosed, kLeft };
constexpr uint64_t kStateMask = 0xff;
// What this rank can: read all its peers' memory; write it, fenced.
constexpr uint64_t kCmaWorks = 0x100, kFenceWorks = 0x200;

// Window numbers of one operation, ordered across operations.
constexpr uint64_t ticket(uint64_t seq, uint64_t window) {
  return seq << 24 | window;
}
constexpr int64_t kMaxWindows = (1 << 24) - 2;

// The first failure of the group.
struct alignas(64) Poison {
  WrittenOnce once;
  int32_t code, culprit;
  char text[800];
};

// One try of the members of a failed group to agree on who goes on: shrink.h.
// Ranks are bits.
enum ShrinkOutcome : uint32_t { kUndecided, kCommitted, kAbandoned, kRefused };
struct alignas(64) ShrinkTry {
  std::atomic<uint64_t> joined{0};    // who came
  std::atomic<uint64_t> members{0};   // who is to go on; set once
  std::atomic<uint64_t> attached{0};  // who maps the new control block
  std::atomic<uint32_t> outcome{0};   // ShrinkOutcome; set once
  std::atomic<uint32_t> made{0};      // 1: block is filled
  std::atomic<uint32_t> refusing{0};  // 1: code, rank and text are taken
  int32_t code, rank;
  SegmentRef block;
  char text[200];
};
struct alignas(64) ShrinkResult {
  std::atomic<uint64_t> left{0};     // who gave up; never comes back
  std::atomic<uint64_t> members{0};  // of the new group; 0: there is none
};

// The last segments a rank freed, so that peers unmap them.
struct Freed {
  static constexpr int kKept = 32;
  std::atomic<uint64_t> nonces[kKept];
};

// Point-to-point from one rank to one other, numbered on its own.
struct Channel {
  Line seq, taken;  // by the sender, by the receiver
  Line staged, consumed;
  Call call;
  Location src;
  Backing backing;
  alignas(64) std::byte payload[kInlineBytes];
};

struct alignas(64) Header {
  uint64_t magic;
  uint32_t version;
  int32_t size;
  int64_t bytes;
  // Of the world: what calibrate() found.
  std::atomic<int64_t> stage_sums, stage_copies;
  std::atomic<bool> streams;
  std::atomic<Way> ways[kMovedKinds];  // what trials found since
};

class Control {
 public:
  Control() = default;
  Control(std::byte* base, int32_t size) : base_(base), size_(size) {}

  static int64_t bytes(int32_t size) {
    return stage_offset(size) + int64_t{size} * kStageBytes;
  }
  // The part that is touched when the block is made.
  static int64_t hot_bytes(int32_t size) { return channel_offset(size); }

  Header& header() const { return at<Header>(0); }
  Poison& poison() const { return at<Poison>(kPoisonOffset); }
  Bell& bell(int32_t rank) const {
    return at<Bell>(kBellOffset + rank * int64_t{sizeof(Bell)});
  }
  Member& member(int32_t rank) const {
    return at<Member>(member_offset(size_) + rank * int64_t{sizeof(Member)});
  }
  Slot& slot(int32_t rank, uint64_t seq) const {
    return at<Slot>(slot_offset(size_) +
                    (rank * 2 + static_cast<int64_t>(seq & 1)) *
                        int64_t{sizeof(Slot)});
  }
  Freed& freed(int32_t rank) const {
    return at<Freed>(freed_offset(size_) + rank * int64_t{sizeof(Freed)});
  }
  ShrinkResult& shrunk() const {
    return at<ShrinkResult>(shrink_offset(size_));
  }
  // A failed try loses a rank or is refused: kSpareTries of those.
  int32_t tries() const { return size_ + kSpareTries; }
  ShrinkTry& shrink_try(int32_t i) const {
    return at<ShrinkTry>(shrink_offset(size_) + int64_t{sizeof(ShrinkResult)} +
                         i * int64_t{sizeof(ShrinkTry)});
  }
  Channel& channel(int32_t from, int32_t to) const {
    return at<Channel>(channel_offset(size_) +
                       (int64_t{from} * size_ + to) * int64_t{sizeof(Channel)});
  }
  std::byte* stage(int32_t rank) const {
    return base_ + stage_offset(size_) + rank * kStageBytes;
  }

 private:
  static constexpr int64_t kPoisonOffset = 128;
  static constexpr int64_t kBellOffset = 1024;
  static constexpr int32_t kSpareTries = 3;
  static int64_t member_offset(int32_t size) {
    return kBellOffset + size * int64_t{sizeof(Bell)};
  }
  static int64_t slot_offset(int32_t size) {
    return member_offset(size) + size * int64_t{sizeof(Member)};
  }
  static int64_t freed_offset(int32_t size) {
    return slot_offset(size) + size * 2 * int64_t{sizeof(Slot)};
  }
  static int64_t shrink_offset(int32_t size) {
    return round(freed_offset(size) + size * int64_t{sizeof(Freed)}, 64);
  }
  static int64_t channel_offset(int32_t size) {
    int64_t tries = (size + kSpareTries) * int64_t{sizeof(ShrinkTry)};
    return round(shrink_offset(size) + int64_t{sizeof(ShrinkResult)} + tries,
                 4096);
  }
  static int64_t stage_offset(int32_t size) {
    return round(
        channel_offset(size) + int64_t{size} * size * int64_t{sizeof(Channel)},
        4096);
  }
  static int64_t round(int64_t value, int64_t to) {
    return (value + to - 1) / to * to;
  }
  template <typename T>
  T& at(int64_t offset) const {
    return *reinterpret_cast<T*>(base_ + offset);
  }

  std::byte* base_ = nullptr;
  int32_t size_ = 0;
};
static_assert(sizeof(Header) <= 128 && sizeof(Poison) <= 1024 - 128);

}  // namespace aliquot::mem
