// World: what one rank knows of its world, shared by all its groups.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/context.h"
#include "comm/mem/huge_pages.h"
#include "comm/mem/layout.h"
#include "comm/mem/way_trial.h"
#include "device/cpu/cpu_device.h"

namespace aliquot::mem {

struct Peer {
  int32_t pid = 0;
  uint64_t start_time = 0;  // of the process, so that pids are not confused
};

struct World;

// Peers' segments that this rank has mapped, by nonce; mapped on first use.
class PeerMaps {
 public:
  // data of a segment that another process made, or why it can not be mapped.
  Result<std::byte*> find(const SegmentRef& ref);

  // Inside the brackets below: what find() returned when this was the same is
  // mapped still.
  uint64_t drops() const { return drops_.load(); }

  // Brackets an operation that uses mapped memory: nothing is unmapped inside.
  void enter() { users_.fetch_add(1); }
  // Unmaps what owners have freed since.
  void leave(const World& world);

 private:
  void drop_freed(const World& world, int32_t owner, uint64_t from,
                  uint64_t to);

  std::atomic<int32_t> users_{0};
  std::atomic<uint64_t> drops_{0};
  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Segment>> entries_;
  uint64_t freed_seen_[kMaxRanks] = {};
};

struct GroupCore;

struct World {
  World(std::shared_ptr<Context> ctx, CpuDevice& device);
  ~World();

  const std::shared_ptr<Context> context;
  // The device's: alive while any operation runs, see GroupCore.
  Runner* const runner;
  const std::shared_ptr<SegmentTable> segments;
  const uint64_t stamp;  // fork_stamp()
  int32_t rank = 0, size = 0;
  std::vector<Peer> peers;
  std::shared_ptr<Segment> segment;
  Control control;
  bool cma = false;     // all ranks may read all others' memory
  bool pushes = false;  // all ranks can write into others' memory, fenced
  PeerMaps maps;
  HugePages huge_pages;
  std::mutex trial_mutex;
  WayTrial trials[kMovedKinds];  // of rank 0

  // The groups of this rank that are alive, for abort.
  std::mutex groups_mutex;
  std::vector<GroupCore*> groups;

  bool forked() const { return fork_stamp() != stamp; }
  // Tells peers about a segment this rank has freed.
  void announce_freed(uint64_t nonce) const;
};

// Reads another process's memory; 0 or an errno.
int read_process(int32_t pid, uint64_t address, void* into, int64_t bytes,
                 int64_t* syscalls);

// A read of a peer's memory that failed.
struct FailedRead {
  int32_t rank;  // of the peer
  uint64_t address;
  int64_t bytes;
};
// Its error in `what`, which names the rank whose memory can not be used: that
// of the peer, or this one.
Status read_error(const World& world, const FailedRead& read, int err,
                  const std::string& what);

}  // namespace aliquot::mem
