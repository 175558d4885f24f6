// What the ranks of one communicator share in the stand-in: named shared
// memory, found by the communicator's name and unlinked as soon as all are
// there.  Words are monotonic; nothing is ever reset.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace aliquot::nccl_double {

constexpr int kMostRanks = 16;
constexpr size_t kStage = 32768;  // bytes of a rank's contribution in a round
constexpr size_t kMail = 8192;    // bytes of a message in flight
constexpr size_t kLog = 1024;

// A collective as its caller sees it.
struct Descriptor {
  int32_t kind, type, op, root;
  uint64_t count;
};
bool same(const Descriptor& a, const Descriptor& b);
std::string text(const Descriptor& d);

struct SplitWish {
  std::atomic<uint64_t> number{0};
  int32_t color = 0, key = 0;
};

struct Slot {
  std::atomic<uint64_t> attached{0}, finalized{0}, gone{0};
  std::atomic<uint64_t> announced{0};  // collectives begun
  Descriptor descriptors[2];
  std::atomic<uint64_t> written{0}, read{0};  // rounds
  SplitWish splits[2];
  alignas(64) std::byte stage[kStage];
};

struct Mailbox {
  std::atomic<uint64_t> written{0}, read{0};
  uint64_t bytes = 0, total = 0;
  int32_t type = 0;
  std::byte data[kMail];
};

// In which order one rank issued operations that concern another one, on all
// communicators that both are in.  In the memory of the family's first one.
struct OrderLog {
  std::atomic<uint64_t> count{0};
  std::atomic<uint64_t> items[kLog];
};

struct Shared {
  std::atomic<uint32_t> attached{0};
  Slot slots[kMostRanks];
  Mailbox mail[kMostRanks][kMostRanks];  // from, to
  OrderLog logs[kMostRanks][kMostRanks];
};

// Maps it, making it if this is the first; null: impossible.
Shared* attach(const std::string& name, int rank);
void detach_name(const std::string& name);

}  // namespace aliquot::nccl_double
