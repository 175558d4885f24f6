// Where an operation's data lies, announced to peers and found at peers, which
// way it goes, and until when others use it.
#include <unistd.h>

#include <cstring>

#include "base/process.h"
#include "comm/mem/algorithms.h"
#include "comm/mem/coll_op.h"
#include "comm/mem/poison.h"
#include "comm/mem/staged.h"
#include "comm/mem/ways.h"

namespace aliquot::mem {

int64_t CollOp::readable_bytes() const {
  bool all_at_root =
      coll.kind == CollKind::kBroadcast || coll.kind == CollKind::kScatter;
  if (all_at_root) return me == coll.root ? part_total() * in_size : 0;
  bool own_part =
      coll.kind == CollKind::kAllGather || coll.kind == CollKind::kGather;
  return (own_part ? part_count(me) : part_total()) * in_size;
}

// all_to_all_v: the counts, and the data if it fits behind them.
void CollOp::announce_pairs() {
  Slot& slot = core.control.slot(me, number);
  std::memcpy(slot.payload, coll.counts.data(), coll.counts.size_bytes());
  auto header = static_cast<int64_t>(coll.counts.size_bytes());
  int64_t bytes = readable_bytes();
  if (bytes == 0 || bytes > kInlineBytes - header) return;
  counted_copy(*this, slot.payload + header, coll.src, bytes, false);
  slot.src = {};
  slot.src.kind = kInSlot;
  slot.src.bytes = bytes;
}

void CollOp::announce_memory() {
  Slot& slot = core.control.slot(me, number);
  const int64_t sent = readable_bytes();
  slot.src.kind = kNowhere;
  if (sent > 0) {
    src_segment_ = locate(core, coll.src, sent, &slot.src, &slot.src_backing);
    if (src_segment_ == nullptr) ask_huge_pages(coll.src, sent);
  }
  slot.dst_kind = kNowhere;
  exposes_dst_ = coll.kind == CollKind::kAllReduce;
  if (!exposes_dst_) return;
  const int64_t results = part_total() * out_size;
  if (in_place() && results == sent) {
    slot.dst_kind = kAsSource;
  } else if (results > 0) {
    dst_segment_ =
        locate(core, coll.dst, results, &slot.dst, &slot.dst_backing);
    slot.dst_kind = dst_segment_ == nullptr ? kPrivate : kInSegment;
    if (dst_segment_ == nullptr) ask_huge_pages(coll.dst, results);
  }
}

void CollOp::ask_huge_pages(const void* data, int64_t bytes) {
  World& world = *core.world;
  if (core.one_process || !world.cma || !world.context->huge_pages) return;
  if (!reads(way_now(world, private_kind(), largest_part(*this)))) return;
  counts.syscalls += world.huge_pages.comes(data, bytes);
}

Moved CollOp::private_kind() const {
  if (coll.kind == CollKind::kAllReduce) return Moved::kReduced;
  return is_reduction(coll.kind) ? Moved::kSums : Moved::kCopies;
}

void CollOp::choose_ways() {
  Slot& slot = core.control.slot(me, number);
  const int64_t bytes = largest_part(*this);
  slot.mapped_way = way_now(*core.world, Moved::kResults, bytes);
  slot.private_way = way_now(*core.world, private_kind(), bytes);
  // Sizes differ between ranks, and so would the numbers of windows.
  if (coll.kind == CollKind::kAllToAllV && core.world->cma) {
    slot.private_way = kRead;
  }
}

Location CollOp::location(int32_t q, Location Slot::*which) const {
  const Slot& from = slot(q);
  if (which == &Slot::src || from.dst_kind == kAsSource) return from.src;
  if (from.dst_kind == kNowhere) return {};
  Location at = from.dst;
  at.kind = from.dst_kind;
  return at;
}

SegmentRef CollOp::segment(int32_t q, Location Slot::*which) const {
  const Slot& from = slot(q);
  const bool second = which == &Slot::dst && from.dst_kind != kAsSource;
  return segment_at(second ? from.dst : from.src,
                    second ? from.dst_backing : from.src_backing);
}

// Null: private memory of another process.
Result<std::byte*> CollOp::find(int32_t q, Location Slot::*which) {
  const Location at = location(q, which);
  if (at.kind == kNowhere) return nullptr;
  if (at.kind == kInSlot) {
    return core.control.slot(q, number).payload +
           size * int64_t{sizeof(int64_t)};
  }
  if (at.kind != kInSegment) {
    const bool local = core.pid(q) == core.pid(me);
    return local ? reinterpret_cast<std::byte*>(at.at) : nullptr;
  }
  KnownMap& known =
      core.known[static_cast<size_t>(2 * q + (which == &Slot::dst ? 1 : 0))];
  const uint64_t drops = core.world->maps.drops();
  if (known.data == nullptr || known.nonce != at.nonce ||
      known.drops != drops) {
    const SegmentRef ref = segment(q, which);
    if (ref.pid == core.pid(me)) return hold(q, at, ref);
    ALQ_ASSIGN(std::byte * data, map_peer(core, q, ref));
    known = {ref.nonce, drops, data, ref.bytes};
  }
  ALQ_TRY(check_within(core, q, at, known.bytes));
  return known.data + at.at;
}

// Made by this process, and so not mapped as a peer's, which would keep it: of
// ranks that are its threads, or common memory.
Result<std::byte*> CollOp::hold(int32_t q, const Location& at,
                                const SegmentRef& ref) {
  ALQ_ASSIGN(auto held, hold_segment(core, q, ref));
  ALQ_TRY(check_within(core, q, at, held->bytes()));
  held_.push_back(std::move(held));
  return held_.back()->data() + at.at;
}

Status CollOp::resolve(Location Slot::*which) {
  for (int32_t q = 0; q < size; ++q) {
    if (q == me) {
      base[q] = which == &Slot::src ? src() : dst();
      continue;
    }
    ALQ_ASSIGN(base[q], find(q, which));
  }
  return {};
}

Status CollOp::resolve_results() {
  const int64_t bytes = part_total() * out_size;
  for (int32_t q = 0; q < size; ++q) {
    if (q == me) continue;
    ALQ_ASSIGN(result[q], find(q, &Slot::dst));
    if (result[q] == nullptr || location(q, &Slot::dst).bytes != bytes) {
      return make_error(ALQ_INTERNAL,
                        "rank {} announced no memory for a result of {} bytes",
                        core.world_rank(q), bytes)
          .with_rank(core.world_rank(q));
    }
  }
  return {};
}

Status CollOp::fetch(int32_t q, Location Slot::*which, int64_t offset,
                     void* into, int64_t bytes) {
  const Location at = location(q, which);
  if (at.kind != kPrivate || offset < 0 || offset > at.bytes - bytes) {
    return make_error(ALQ_INTERNAL, "rank {} announced no memory for {} bytes",
                      core.world_rank(q), bytes)
        .with_rank(core.world_rank(q));
  }
  const auto from = at.at + static_cast<uint64_t>(offset);
  const int err =
      read_process(core.pid(q), from, into, bytes, &counts.syscalls);
  if (err == 0) return {};
  return read_error(*core.world, {core.world_rank(q), from, bytes}, err,
                    what());
}

// Threads of this process may read our memory, whoever adds for all may write
// into our dst.  One that paused or is gone writes no more: fenced_copy.h.
bool CollOp::memory_in_use() const {
  for (int32_t q = 0; q < size; ++q) {
    if (q == me) continue;
    const Member& member = core.control.member(q);
    const bool local = core.pid(q) == core.pid(me);
    if (local && member.reading.value.load() != 0) return true;
    if (!exposes_dst_ || member.writing.value.load() == 0) continue;
    const auto world_rank = static_cast<size_t>(core.world_rank(q));
    const Peer& other = core.world->peers[world_rank];
    if (process_state(other.pid, other.start_time) != ProcessState::kEnded &&
        !all_threads_paused(other.pid)) {
      return true;
    }
  }
  return false;
}

// Dropped while peers may be in its memory.
void CollOp::withdraw() {
  if (core.world->forked()) return;
  poison_by_leaving(core, what());
  const Deadline until = Deadline::after(kMemoryNs);
  while (memory_in_use() && !until.passed()) usleep(50);
}

}  // namespace aliquot::mem
