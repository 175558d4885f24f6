// GroupCore: one rank's state of a group.  Operations keep it alive, and it
// does not keep the runner alive: a runner owns its queues and they own their
// operations.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/mem/world.h"

namespace aliquot::mem {

struct Stats {
  std::atomic<int64_t> ops{0}, bytes_read{0}, bytes_written{0},
      peer_bytes_read{0}, syscalls{0}, sleeps{0};
  void add(const GroupStats& more);
  GroupStats read() const;
};

// Numbers of the point-to-point operations with one peer.
struct PairTurns {
  std::atomic<uint64_t> send_issued{0}, send_turn{1};
  std::atomic<uint64_t> recv_issued{0}, recv_turn{1};
};

// Private memory that is not zeroed, on huge pages where possible.
class Scratch {
 public:
  ~Scratch();
  // At least `bytes`, 2 MiB aligned; null when there is none.
  std::byte* get(int64_t bytes);

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// A group that another one was split from: who is removed from it is removed
// from that one too.
struct Origin {
  std::shared_ptr<Segment> segment;
  Control control;
  int32_t rank;
  std::string name;
};

// A peer's segment that was mapped when PeerMaps had dropped so many.
struct KnownMap {
  uint64_t nonce = 0, drops = 0;
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

struct GroupCore {
  GroupCore(std::shared_ptr<World> w, std::string group_name,
            std::vector<int32_t> world_ranks,
            std::shared_ptr<Segment> control_segment);
  ~GroupCore();
  GroupCore(const GroupCore&) = delete;
  GroupCore& operator=(const GroupCore&) = delete;

  const std::shared_ptr<World> world;
  const std::string name;
  const std::vector<int32_t> ranks;  // world ranks
  const int32_t size;
  int32_t rank = -1;
  bool is_world = false;        // the first group of its rank
  bool one_process = true;      // all ranks are threads of this process
  bool shares_process = false;  // some other rank is
  bool watched = false;         // the ends of other processes are noticed
  const std::shared_ptr<Segment> segment;
  const Control control;

  std::atomic<uint64_t> issued{0};  // collectives
  std::atomic<uint64_t> turn{1};    // the one that may run
  std::vector<PairTurns> pairs;
  std::atomic<int64_t> timeout_ns{0};
  std::atomic<bool> closed{false};
  std::atomic<uint64_t> aborts{0};  // by this rank: they end a shrink as well

  // How often the group, or one that it was split from, was shrunk; `name` is
  // `base` with it.
  uint64_t generation = 0;
  std::string base;
  std::vector<Origin> origins;
  int32_t next_try = 0;  // of a shrink
  bool shrunk = false;
  std::atomic<bool> reported{false};  // the cause was returned once
  Stats stats;
  uint32_t flight_group = 0;
  Consequences<GroupCore> consequences;
  // Of the operation whose turn it is.
  Scratch scratch;
  std::vector<KnownMap> known;  // two for each member: of its src, its dst

  Bell& bell(int32_t q) const {
    return world->control.bell(ranks[static_cast<size_t>(q)]);
  }
  int32_t pid(int32_t q) const {
    return world->peers[static_cast<size_t>(world_rank(q))].pid;
  }
  int32_t world_rank(int32_t q) const { return ranks[static_cast<size_t>(q)]; }
  bool failed() const { return control.poison().once.begun(); }
  Member& self() const { return control.member(rank); }
  // Rings all peers; returns system calls made.
  int ring_peers() const;
  // Whether member q has closed the group or left it, or its world.
  MemberState state(int32_t q) const;
};

// Says where a rank's memory of at least a byte lies.  Returns its segment, to
// be held while peers may use it; null: private memory.
std::shared_ptr<Segment> locate(const GroupCore& core, const void* data,
                                int64_t bytes, Location* at, Backing* backing);
inline SegmentRef segment_at(const Location& at, const Backing& backing) {
  return {backing.pid, backing.fd, at.nonce, backing.segment_bytes};
}
// Refuses what does not lie within its segment of member q.
Status check_within(const GroupCore& core, int32_t q, const Location& at,
                    int64_t segment_bytes);

// A segment that this process made and member q announced.  Whoever holds it
// reads what was there, also when q, a thread of this process, has released it.
Result<std::shared_ptr<Segment>> hold_segment(const GroupCore& core, int32_t q,
                                              const SegmentRef& ref);

// Maps the segment that member q announced.  Where that fails the error names
// who made the segment; one that is gone took it along.
Result<std::byte*> map_peer(const GroupCore& core, int32_t q,
                            const SegmentRef& ref);

}  // namespace aliquot::mem
