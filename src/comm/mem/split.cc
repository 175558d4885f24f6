// Split and common memory: the members of a group make something new by
// exchanging a few bytes over the group itself.  A failure of any member is
// known to all before anyone uses the result.
#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "comm/mem/coll_op.h"
#include "comm/mem/group.h"
#include "comm/mem/poison.h"
#include "comm/mem/shrink.h"

namespace aliquot::mem {
namespace {

struct SplitEntry {
  int32_t color, key, rank, reserved;
};

struct Outcome {
  int32_t code, rank;
  char text[400];
};

// Not memory of its own, so nothing is announced to peers when it goes.
Result<std::shared_ptr<Segment>> attach_from(const SegmentRef& ref,
                                             int32_t world_rank) {
  auto segment = Segment::attach(ref);
  if (segment.ok()) return segment;
  return make_error(ALQ_UNAVAILABLE, "memory of rank {} can not be mapped: {}",
                    world_rank, segment.status().message())
      .with_rank(world_rank);
}

}  // namespace

Result<std::shared_ptr<Segment>> make_control(int32_t size,
                                              const std::string& name) {
  auto created = Segment::create(
      Control::bytes(size), fmt::format("control of group {}", name), false);
  if (!created.ok()) return created.status();
  // Touch what every operation uses; channels and staging are backed when
  // first used.
  std::memset((*created)->data(), 0,
              static_cast<size_t>(Control::hot_bytes(size)));
  Header& header = Control((*created)->data(), size).header();
  header.version = kProtocolVersion;
  header.size = size;
  header.bytes = Control::bytes(size);
  header.magic = kControlMagic;
  return created;
}

Status check_control(const Segment& segment, int32_t size,
                     const std::string& name) {
  if (segment.bytes() == Control::bytes(size)) {
    const Header& header = Control(segment.data(), size).header();
    if (header.magic == kControlMagic && header.version == kProtocolVersion &&
        header.size == size && header.bytes == segment.bytes()) {
      return {};
    }
  }
  return make_error(ALQ_UNAVAILABLE,
                    "the control block of group \"{}\" is not one of {} ranks "
                    "and version {}; use one library version on all ranks",
                    name, size, kProtocolVersion);
}

Status MemGroup::exchange(const void* mine, void* all, int64_t bytes_each,
                          Deadline deadline) {
  Coll coll;
  coll.kind = CollKind::kAllGather;
  coll.src = mine;
  coll.dst = all;
  coll.count = bytes_each;
  ALQ_TRY(normalize(*core_, &coll));
  return run_inline(coll, kCallInternal, &deadline);
}

Status MemGroup::agree(const Status& mine, std::span<const int32_t> members,
                       Deadline deadline) {
  Outcome outcome{};
  outcome.code = mine.code();
  outcome.rank = mine.rank();
  copy_text(outcome.text, mine.message());
  std::vector<Outcome> all(static_cast<size_t>(core_->size));
  ALQ_TRY(exchange(&outcome, all.data(), sizeof outcome, deadline));
  for (int32_t q : members) {
    Outcome& other = all[static_cast<size_t>(q)];
    other.text[sizeof other.text - 1] = '\0';
    if (other.code == ALQ_OK) continue;
    return make_error(other.code, "rank {}: {}", core_->world_rank(q),
                      other.text)
        .with_rank(core_->world_rank(q));
  }
  return {};
}

Result<std::shared_ptr<Group>> MemGroup::split(int32_t color, int32_t key,
                                               std::string name,
                                               Deadline deadline) {
  ALQ_TRY(enter());
  ALQ_TRY(core_->world->context->faults.point("group.split"));
  const std::string base = name;
  name = generation_name(base, core_->generation);
  auto count = static_cast<size_t>(core_->size);
  SplitEntry mine{color, key, core_->rank, 0};
  std::vector<SplitEntry> entries(count);
  ALQ_TRY(exchange(&mine, entries.data(), sizeof mine, deadline));

  std::vector<SplitEntry> chosen;
  for (size_t q = 0; q < count; ++q) {
    entries[q].rank = static_cast<int32_t>(q);
    if (color >= 0 && entries[q].color == color) chosen.push_back(entries[q]);
  }
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const auto& a, const auto& b) { return a.key < b.key; });
  std::vector<int32_t> members, world_ranks;
  for (const SplitEntry& entry : chosen) {
    members.push_back(entry.rank);
    world_ranks.push_back(core_->world_rank(entry.rank));
  }
  auto size = static_cast<int32_t>(members.size());
  bool leads = size > 0 && members[0] == core_->rank;

  // The first member makes the control block, the others attach.
  Status status;
  std::shared_ptr<Segment> segment;
  SegmentRef ref;
  if (leads) {
    auto made = make_control(size, name);
    status = made.status();
    if (made.ok()) segment = *made;
    if (made.ok()) ref = segment->ref();
  }
  std::vector<SegmentRef> refs(count);
  ALQ_TRY(exchange(&ref, refs.data(), sizeof ref, deadline));
  if (size > 0 && !leads) {
    status = core_->world->context->faults.point("group.attach");
    if (status.ok()) {
      auto attached =
          attach_from(refs[static_cast<size_t>(members[0])], world_ranks[0]);
      status = attached.status();
      if (attached.ok()) segment = *attached;
    }
    if (status.ok()) status = check_control(*segment, size, name);
  }
  std::shared_ptr<GroupCore> core;
  if (segment != nullptr && status.ok()) {
    core = std::make_shared<GroupCore>(core_->world, name,
                                       std::move(world_ranks), segment);
    core->timeout_ns.store(core_->timeout_ns.load());
    core->generation = core_->generation;
    core->base = base;
    core->origins = core_->origins;
    core->origins.push_back(
        {core_->segment, core_->control, core_->rank, core_->name});
    core->self().state.value.store(kAttached);
  }
  ALQ_TRY(agree(status, members, deadline));
  if (core == nullptr) return std::shared_ptr<Group>();
  return std::shared_ptr<Group>(std::make_shared<MemGroup>(core, device_));
}

Result<std::shared_ptr<Group>> MemGroup::shrink(Deadline deadline) {
  ALQ_TRY(usable());
  if (!poisoned(*core_) || core_->shrunk) {
    return make_error(
        ALQ_FAILED_PRECONDITION,
        "group \"{}\" {}; only a group that has failed is shrunk, "
        "and once",
        core_->name, core_->shrunk ? "was shrunk" : "is well");
  }
  ALQ_ASSIGN(Shrunk shrunk, agree_to_shrink(*core_, deadline));
  core_->shrunk = true;
  std::vector<int32_t> world_ranks;
  for (int32_t q : shrunk.members) world_ranks.push_back(core_->world_rank(q));
  uint64_t generation = core_->generation + 1;
  auto core = std::make_shared<GroupCore>(
      core_->world, generation_name(core_->base, generation),
      std::move(world_ranks), std::move(shrunk.segment));
  core->timeout_ns.store(core_->timeout_ns.load());
  core->generation = generation;
  core->base = core_->base;
  core->origins = core_->origins;
  return std::shared_ptr<Group>(std::make_shared<MemGroup>(core, device_));
}

Result<std::unique_ptr<Memory>> MemGroup::allocate_common(int64_t bytes,
                                                          std::string label,
                                                          Deadline deadline) {
  ALQ_TRY(enter());
  auto count = static_cast<size_t>(core_->size);
  Status status;
  std::shared_ptr<Segment> segment;
  SegmentRef ref;
  if (core_->rank == 0) {
    auto made = Segment::create(bytes, label, false);
    status = made.status();
    if (made.ok()) segment = *made;
    if (made.ok()) ref = segment->ref();
  }
  struct Entry {
    SegmentRef ref;
    int64_t bytes;
  };
  Entry mine{ref, bytes};
  std::vector<Entry> all(count);
  ALQ_TRY(exchange(&mine, all.data(), sizeof mine, deadline));
  for (size_t q = 0; q < count && status.ok(); ++q) {
    if (all[q].bytes == bytes) continue;
    status =
        make_error(ALQ_RANK_MISMATCH,
                   "common memory \"{}\": rank {} asked for {} bytes, "
                   "rank {} for {}",
                   label, core_->world_rank(core_->rank), bytes,
                   core_->world_rank(static_cast<int32_t>(q)), all[q].bytes);
  }
  if (core_->rank != 0 && status.ok() && all[0].ref.nonce != 0) {
    auto attached = attach_from(all[0].ref, core_->world_rank(0));
    status = attached.status();
    if (attached.ok()) segment = *attached;
  }
  if (segment != nullptr) segment->touch(core_->rank, core_->size);
  std::vector<int32_t> members(count);
  for (size_t q = 0; q < count; ++q) members[q] = static_cast<int32_t>(q);
  ALQ_TRY(agree(status, members, deadline));
  return segment_memory(device_->segments(), std::move(segment),
                        core_->rank == 0);
}

}  // namespace aliquot::mem
