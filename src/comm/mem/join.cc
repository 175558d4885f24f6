#include "comm/mem/join.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/process.h"
#include "comm/mem/calibrate.h"
#include "comm/mem/fenced_copy.h"
#include "comm/mem/group.h"
#include "comm/mem/poison.h"

namespace aliquot {
namespace mem {

namespace {

constexpr uint64_t kBlobMagic = 0x316e696f6a716c41;

struct BlobData {
  uint64_t magic = kBlobMagic;
  uint32_t version = kProtocolVersion;
  int32_t rank = 0, size = 0, pid = 0;
  uint64_t start_time = 0;
  uint64_t probe_address = 0, probe_value = 0;
  SegmentRef control;
  char boot_id[40] = {};
};
static_assert(sizeof(BlobData) <= 1024);

void read_boot_id(char (&id)[40]) {
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ssize_t length = read(fd, id, sizeof id - 1);
  close(fd);
  if (length > 0 && id[length - 1] == '\n') id[length - 1] = '\0';
}

Status check_blob(const BlobData& blob, const BlobData& mine, int32_t q) {
  if (blob.magic != kBlobMagic) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "the blob given for rank {} is not a bootstrap blob", q)
        .with_rank(q);
  }
  if (blob.version != mine.version) {
    return make_error(ALQ_UNAVAILABLE,
                      "rank {} speaks version {} of the shared memory "
                      "protocol, this rank {}; use one library version",
                      q, blob.version, mine.version)
        .with_rank(q);
  }
  if (blob.size != mine.size) {
    return make_error(ALQ_RANK_MISMATCH,
                      "rank {} was told a world of {} ranks, rank {} one of {}",
                      mine.rank, mine.size, q, blob.size)
        .with_rank(q);
  }
  if (blob.rank != q) {
    return make_error(ALQ_RANK_MISMATCH,
                      "the blob given for rank {} is that of rank {}; pass "
                      "them in rank order",
                      q, blob.rank)
        .with_rank(q);
  }
  if (std::memcmp(blob.boot_id, mine.boot_id, sizeof mine.boot_id) != 0) {
    return make_error(ALQ_UNAVAILABLE,
                      "rank {} is on another host: shared memory does not "
                      "reach it",
                      q)
        .with_rank(q);
  }
  return {};
}

// Whether this process may read every other one's memory.
bool probe_peers(const std::vector<BlobData>& blobs, int32_t self) {
  for (const BlobData& blob : blobs) {
    if (blob.pid == blobs[static_cast<size_t>(self)].pid) continue;
    uint64_t value = 0;
    int64_t calls = 0;
    if (read_process(blob.pid, blob.probe_address, &value, sizeof value,
                     &calls) != 0 ||
        value != blob.probe_value) {
      return false;
    }
  }
  return true;
}

// Says "attached" and waits for everyone to say so.
Status meet(GroupCore& core, uint64_t flags, Deadline deadline) {
  core.self().state.value.store(kAttached | flags);
  core.ring_peers();
  auto missing = [&] {
    std::vector<int32_t> ranks;
    for (int32_t q = 0; q < core.size; ++q) {
      uint64_t state = core.control.member(q).state.value.load() & kStateMask;
      if (state == kAbsent) ranks.push_back(q);
    }
    return ranks;
  };
  // Once all were here the join has succeeded; who fails later is found later.
  auto poll = [&](bool) {
    if (missing().empty()) return Step::kDone;
    return poisoned(core) ? Step::kFailed : Step::kWaiting;
  };
  core.world->runner->wait(Poll(poll), deadline);
  auto ranks = missing();
  if (ranks.empty()) return {};
  if (poisoned(core)) return poison_cause(core);
  std::string text = fmt::format(
      "joining world: rank(s) {} did not attach within the deadline",
      fmt::join(ranks, ", "));
  poison(core, ALQ_DEADLINE_EXCEEDED, ranks[0], text);
  return poison_cause(core);
}

}  // namespace
}  // namespace mem

using namespace mem;

Result<std::unique_ptr<MemJoin>> MemJoin::create(
    std::shared_ptr<Context> context, std::shared_ptr<CpuDevice> device,
    bool read_memory) {
  if (context->size < 1 || context->size > kMaxRanks || context->rank < 0 ||
      context->rank >= context->size) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "rank {} of {} is not possible: shared memory groups "
                      "have 1 to {} ranks, counted from 0",
                      context->rank, context->size, kMaxRanks);
  }
  std::unique_ptr<MemJoin> join(
      new MemJoin(std::move(context), std::move(device)));
  join->read_memory_ = read_memory;
  BlobData blob;
  blob.rank = join->context_->rank;
  blob.size = join->context_->size;
  blob.pid = getpid();
  blob.start_time = process_info(blob.pid).start_time;
  if (blob.start_time == 0) {  // by which peers know whether it is alive
    return errno_error(
        ALQ_RESOURCE_EXHAUSTED,
        fmt::format("rank {}: can not read /proc/{}/stat", blob.rank, blob.pid),
        errno);
  }
  join->probe_ = std::make_unique<uint64_t>(random_nonce());
  blob.probe_address = reinterpret_cast<uint64_t>(join->probe_.get());
  blob.probe_value = *join->probe_;
  read_boot_id(blob.boot_id);
  if (blob.rank == 0) {
    ALQ_ASSIGN(join->segment_, make_control(blob.size, "world"));
    blob.control = join->segment_->ref();
  }
  join->blob_.assign(reinterpret_cast<const char*>(&blob), sizeof blob);
  return join;
}

Result<std::shared_ptr<Group>> MemJoin::connect(
    const std::vector<std::string>& blobs, Deadline deadline) {
  if (used_) {
    return make_error(ALQ_FAILED_PRECONDITION, "rank {} is connected already",
                      context_->rank);
  }
  used_ = true;
  auto size = static_cast<size_t>(context_->size);
  if (blobs.size() != size) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "{} blobs given, the world has {} ranks", blobs.size(),
                      size);
  }
  std::vector<BlobData> data(size);
  BlobData mine;
  std::memcpy(&mine, blob_.data(), sizeof mine);
  for (size_t q = 0; q < size; ++q) {
    if (blobs[q].size() != sizeof(BlobData)) {
      return make_error(ALQ_INVALID_ARGUMENT,
                        "the blob of rank {} has {} bytes, not {}", q,
                        blobs[q].size(), sizeof(BlobData));
    }
    std::memcpy(&data[q], blobs[q].data(), sizeof(BlobData));
    ALQ_TRY(check_blob(data[q], mine, static_cast<int32_t>(q)));
  }
  ALQ_TRY(context_->faults.point("group.attach"));
#ifdef PR_SET_PTRACER
  // Where Yama restricts it, let peers read this process's memory.  Refusal
  // only means that data is staged.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
#endif

  auto world = std::make_shared<World>(context_, *device_);
  world->rank = context_->rank;
  world->size = context_->size;
  for (const BlobData& blob : data) {
    world->peers.push_back({blob.pid, blob.start_time});
  }
  if (segment_ != nullptr) {
    world->segment = segment_;
  } else {
    auto attached = Segment::attach(data[0].control);
    if (!attached.ok()) {
      return make_error(ALQ_UNAVAILABLE, "rank 0 can not be reached: {}",
                        attached.status().message())
          .with_rank(0);
    }
    world->segment = std::move(*attached);
  }
  ALQ_TRY(check_control(*world->segment, world->size, "world"));
  world->control = Control(world->segment->data(), world->size);
  world->runner->use_bells(&world->control.bell(0), world->rank, world->size,
                           world->segment);
  world->segments->set_on_free(
      [w = std::weak_ptr<World>(world)](uint64_t nonce) {
        auto alive = w.lock();
        if (alive != nullptr) alive->announce_freed(nonce);
        return alive;
      });

  std::vector<int32_t> ranks(size);
  for (size_t q = 0; q < size; ++q) ranks[q] = static_cast<int32_t>(q);
  auto core = std::make_shared<GroupCore>(world, "world", std::move(ranks),
                                          world->segment);
  if (!core->watched) {
    std::string text = fmt::format(
        "joining world: the system gives rank {} no thread, to notice the end "
        "of others; allow more threads or memory",
        world->rank);
    poison(*core, ALQ_RESOURCE_EXHAUSTED, world->rank, text);
    return poison_cause(*core);
  }
  bool cma = read_memory_ && probe_peers(data, world->rank);
  ALQ_TRY(meet(*core,
               (cma ? kCmaWorks : 0) | (can_fence_copies() ? kFenceWorks : 0),
               deadline));
  uint64_t all = kCmaWorks | kFenceWorks;
  for (int32_t q = 0; q < world->size; ++q) {
    all &= world->control.member(q).state.value.load();
  }
  world->cma = (all & kCmaWorks) != 0;
  world->pushes = (all & kFenceWorks) != 0;
  if (!world->cma) {
    context_->log.info("world",
                       "ranks may not read each other's private memory "
                       "(process_vm_readv): large operations on buffers that "
                       "are not from alq_buffer_alloc are staged");
  }
  calibrate(*core);
  return std::shared_ptr<Group>(
      std::make_shared<MemGroup>(std::move(core), device_));
}

}  // namespace aliquot
