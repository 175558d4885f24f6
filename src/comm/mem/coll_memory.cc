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

void CollOp::locate() {
  Slot& slot = core.control.slot(me, number);
  const bool asks =
      !core.one_process && core.world->cma && core.world->context->huge_pages;
  auto read_by_peers = [this] {
    return reads(way_now(*core.world, private_kind(), largest_part(*this)));
  };
  auto fill = [&](const void* data, int64_t n, std::shared_ptr<Segment>* hold) {
    Location at{};
    if (n == 0) return at;
    at.kind = kPrivate;
    at.pid = core.pid(me);
    at.address = reinterpret_cast<uint64_t>(data);
    at.bytes = n;
    *hold = core.world->segments->find(data, n);
    if (*hold == nullptr) {
      if (asks && read_by_peers())
        counts.syscalls += core.world->huge_pages.comes(data, n);
      return at;
    }
    const SegmentRef& ref = (*hold)->ref();
    at.kind = kInSegment;
    at.pid = ref.pid;  // who made it: not this rank if it is common memory
    at.fd = ref.fd;
    at.nonce = ref.nonce;
    at.segment_bytes = ref.bytes;
    at.offset = static_cast<const std::byte*>(data) - (*hold)->data();
    return at;
  };
  slot.src = fill(coll.src, readable_bytes(), &src_segment_);
  exposes_dst_ = coll.kind == CollKind::kAllReduce;
  if (exposes_dst_) {
    slot.dst = fill(coll.dst, part_total() * out_size, &dst_segment_);
  } else if (slot.dst.kind != kNowhere) {
    slot.dst = {};
  }
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

// Null: private memory of another process.
Result<std::byte*> CollOp::find(int32_t q, const Location& at) {
  if (at.kind == kNowhere) return nullptr;
  if (at.kind == kInSlot) {
    return core.control.slot(q, number).payload +
           size * int64_t{sizeof(int64_t)};
  }
  if (core.pid(q) == core.pid(me)) {
    if (at.kind == kInSegment) {
      ALQ_ASSIGN(auto segment, hold_segment(core, q, at));
      held_.push_back(std::move(segment));
    }
    return reinterpret_cast<std::byte*>(at.address);
  }
  if (at.kind != kInSegment) return nullptr;
  if (at.offset < 0 || at.bytes < 0 || at.segment_bytes < at.bytes ||
      at.offset > at.segment_bytes - at.bytes) {
    return make_error(ALQ_INTERNAL,
                      "rank {} announced memory outside its segment",
                      core.world_rank(q))
        .with_rank(core.world_rank(q));
  }
  KnownMap& known = core.known[static_cast<size_t>(q)];
  const uint64_t drops = core.world->maps.drops();
  if (known.data == nullptr || known.nonce != at.nonce ||
      known.drops != drops) {
    ALQ_ASSIGN(std::byte * data, map_peer(core, q, at));
    known = {at.nonce, drops, data};
  }
  return known.data + at.offset;
}

Status CollOp::resolve(Location Slot::*which) {
  for (int32_t q = 0; q < size; ++q) {
    if (q == me) {
      base[q] = which == &Slot::src ? src() : dst();
      continue;
    }
    ALQ_ASSIGN(base[q], find(q, slot(q).*which));
  }
  return {};
}

Status CollOp::resolve_results() {
  const int64_t bytes = part_total() * out_size;
  for (int32_t q = 0; q < size; ++q) {
    if (q == me) continue;
    const Location at = slot(q).dst;
    ALQ_ASSIGN(result[q], find(q, at));
    if (result[q] == nullptr || at.bytes != bytes) {
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
  const Location at = slot(q).*which;
  if (at.kind != kPrivate || offset < 0 || offset > at.bytes - bytes) {
    return make_error(ALQ_INTERNAL, "rank {} announced no memory for {} bytes",
                      core.world_rank(q), bytes)
        .with_rank(core.world_rank(q));
  }
  const auto from = at.address + static_cast<uint64_t>(offset);
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
