#include "comm/mem/core.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "comm/mem/watchdog.h"

namespace aliquot::mem {

void Stats::add(const GroupStats& more) {
  ops.fetch_add(more.ops, std::memory_order_relaxed);
  bytes_read.fetch_add(more.bytes_read, std::memory_order_relaxed);
  bytes_written.fetch_add(more.bytes_written, std::memory_order_relaxed);
  peer_bytes_read.fetch_add(more.peer_bytes_read, std::memory_order_relaxed);
  if (more.syscalls != 0) {
    syscalls.fetch_add(more.syscalls, std::memory_order_relaxed);
  }
  if (more.sleeps != 0) {
    sleeps.fetch_add(more.sleeps, std::memory_order_relaxed);
  }
}

GroupStats Stats::read() const {
  GroupStats out;
  out.ops = ops.load();
  out.bytes_read = bytes_read.load();
  out.bytes_written = bytes_written.load();
  out.peer_bytes_read = peer_bytes_read.load();
  out.syscalls = syscalls.load();
  out.sleeps = sleeps.load();
  return out;
}

Scratch::~Scratch() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

std::byte* Scratch::get(int64_t bytes) {
  if (bytes <= bytes_) return data_;
  constexpr int64_t kHuge = int64_t{1} << 21;
  bytes = (bytes + kHuge - 1) / kHuge * kHuge;
  // Ask for more to be able to align; give the ends back.
  void* raw = mmap(nullptr, static_cast<size_t>(bytes + kHuge),
                   PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto begin = reinterpret_cast<uintptr_t>(raw);
  uintptr_t aligned = (begin + kHuge - 1) / kHuge * kHuge;
  if (aligned > begin) munmap(raw, aligned - begin);
  uintptr_t end = begin + static_cast<uintptr_t>(bytes + kHuge);
  uintptr_t used_end = aligned + static_cast<uintptr_t>(bytes);
  if (end > used_end) {
    munmap(reinterpret_cast<void*>(used_end), end - used_end);
  }
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
  data_ = reinterpret_cast<std::byte*>(aligned);
  bytes_ = bytes;
  madvise(data_, static_cast<size_t>(bytes_), MADV_HUGEPAGE);
  return data_;
}

GroupCore::GroupCore(std::shared_ptr<World> w, std::string group_name,
                     std::vector<int32_t> world_ranks,
                     std::shared_ptr<Segment> control_segment)
    : world(std::move(w)),
      name(std::move(group_name)),
      ranks(std::move(world_ranks)),
      size(static_cast<int32_t>(ranks.size())),
      segment(std::move(control_segment)),
      control(segment->data(), size),
      pairs(ranks.size()),
      timeout_ns(world->context->timeout_ns),
      known(2 * ranks.size()) {
  base = name;
  auto own = std::find(ranks.begin(), ranks.end(), world->rank);
  rank = static_cast<int32_t>(own - ranks.begin());
  for (int32_t q = 0; q < size; ++q) {
    one_process &= pid(q) == pid(rank);
    shares_process |= q != rank && pid(q) == pid(rank);
  }
  if (Flight* flight = world->context->flight.get(); flight != nullptr) {
    flight_group = flight->add_group(name, ranks);
  }
  {
    std::lock_guard lock(world->groups_mutex);
    is_world = world->groups.empty();
    world->groups.push_back(this);
  }
  watched = watchdog_add(this);
}

GroupCore::~GroupCore() {
  if (world->forked()) return;
  {
    std::lock_guard lock(world->groups_mutex);
    std::erase(world->groups, this);
  }
  watchdog_remove(this);
  Line& state = self().state;
  uint64_t now = state.value.load();
  if ((now & kStateMask) == kAttached) {
    state.value.store((now & ~kStateMask) | kLeft);
    ring_peers();
  }
}

int GroupCore::ring_peers() const {
  int calls = 0;
  for (int32_t q = 0; q < size; ++q) {
    if (q != rank) calls += ring(bell(q));
  }
  return calls;
}

std::shared_ptr<Segment> locate(const GroupCore& core, const void* data,
                                int64_t bytes, Location* at, Backing* backing) {
  auto segment = core.world->segments->find(data, bytes);
  *at = {bytes, 0, reinterpret_cast<uint64_t>(data), kPrivate, 0};
  if (segment == nullptr) return nullptr;
  // Who made it: not this rank if it is common memory.
  const SegmentRef& ref = segment->ref();
  *backing = {ref.pid, ref.fd, ref.bytes};
  at->nonce = ref.nonce;
  at->at = static_cast<uint64_t>(static_cast<const std::byte*>(data) -
                                 segment->data());
  at->kind = kInSegment;
  return segment;
}

Status check_within(const GroupCore& core, int32_t q, const Location& at,
                    int64_t segment_bytes) {
  if (at.bytes >= 0 && segment_bytes >= at.bytes &&
      at.at <= static_cast<uint64_t>(segment_bytes - at.bytes)) {
    return {};
  }
  return make_error(ALQ_INTERNAL,
                    "rank {} announced memory outside its segment",
                    core.world_rank(q))
      .with_rank(core.world_rank(q));
}

Result<std::shared_ptr<Segment>> hold_segment(const GroupCore& core, int32_t q,
                                              const SegmentRef& ref) {
  auto segment = Segment::attach(ref);
  if (segment.ok()) return segment;
  return make_error(ALQ_PEER_FAILED, "rank {} left, and its memory is gone: {}",
                    core.world_rank(q), segment.status().message())
      .with_rank(core.world_rank(q));
}

Result<std::byte*> map_peer(const GroupCore& core, int32_t q,
                            const SegmentRef& ref) {
  int32_t owner = core.world_rank(q);
  // Common memory was made by one rank for all.
  for (int32_t r = 0; r < core.world->size && ref.pid != core.pid(q); ++r) {
    const Peer& peer = core.world->peers[static_cast<size_t>(r)];
    if (peer.pid == ref.pid) owner = r;
  }
  auto data = core.world->maps.find(ref);
  if (data.ok()) return data;
  const Status& why = data.status();
  bool ended = why.native_code() == ENOENT || why.native_code() == ESRCH;
  return make_error(ended ? ALQ_PEER_FAILED : why.code(),
                    "memory of rank {} can not be mapped{}: {}", owner,
                    ended ? "; it died or left" : "", why.message())
      .with_rank(owner);
}

MemberState GroupCore::state(int32_t q) const {
  uint64_t own = control.member(q).state.value.load() & kStateMask;
  if (own == kClosed || own == kLeft) return static_cast<MemberState>(own);
  uint64_t in_world =
      world->control.member(world_rank(q)).state.value.load() & kStateMask;
  if (in_world == kClosed || in_world == kLeft) {
    return static_cast<MemberState>(in_world);
  }
  return static_cast<MemberState>(own);
}

}  // namespace aliquot::mem
