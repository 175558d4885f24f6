#include "comm/mem/world.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

#include "device/cpu/fork.h"

namespace aliquot::mem {

Result<std::byte*> PeerMaps::find(const SegmentRef& ref) {
  {
    std::lock_guard lock(mutex_);
    auto found = entries_.find(ref.nonce);
    if (found != entries_.end()) return found->second->data();
  }
  ALQ_ASSIGN(auto segment, Segment::attach(ref));
  std::byte* data = segment->data();
  std::lock_guard lock(mutex_);
  entries_[ref.nonce] = std::move(segment);
  return data;
}

void PeerMaps::leave(const World& world) {
  if (users_.fetch_sub(1) != 1) return;
  std::lock_guard lock(mutex_);
  for (int32_t q = 0; q < world.size; ++q) {
    uint64_t freed = world.control.member(q).freed.value.load();
    if (freed == freed_seen_[q]) continue;
    // Whoever enters after this look sees the count, and waits for the lock.
    drops_.fetch_add(1);
    if (users_.load() != 0) return;
    drop_freed(world, q, freed_seen_[q], freed);
    freed_seen_[q] = freed;
  }
}

void PeerMaps::drop_freed(const World& world, int32_t owner, uint64_t from,
                          uint64_t to) {
  if (to - from > Freed::kKept) {  // some were overwritten: map anew
    const int32_t maker = world.peers[static_cast<size_t>(owner)].pid;
    std::erase_if(entries_, [=](const auto& entry) {
      return entry.second->ref().pid == maker;
    });
    return;
  }
  for (uint64_t i = from; i != to; ++i) {
    entries_.erase(world.control.freed(owner).nonces[i % Freed::kKept].load());
  }
}

World::World(std::shared_ptr<Context> ctx, CpuDevice& device)
    : context(std::move(ctx)),
      runner(device.runner().get()),
      segments(device.segments()),
      stamp(fork_stamp()) {}

World::~World() { segments->set_on_free(nullptr); }

void World::announce_freed(uint64_t nonce) const {
  if (forked()) return;
  Line& freed = control.member(rank).freed;
  uint64_t n = freed.value.load();
  control.freed(rank).nonces[n % Freed::kKept].store(nonce);
  freed.value.store(n + 1);
}

int read_process(int32_t pid, uint64_t address, void* into, int64_t bytes,
                 int64_t* syscalls) {
  while (bytes > 0) {
    auto size = static_cast<size_t>(std::min<int64_t>(bytes, 1 << 30));
    iovec local{into, size};
    iovec remote{reinterpret_cast<void*>(address), size};
    ssize_t n = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    ++*syscalls;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : EFAULT;
    into = static_cast<std::byte*>(into) + n;
    address += static_cast<uint64_t>(n);
    bytes -= n;
  }
  return 0;
}

namespace {

// Whether all pages can be read.
bool readable(int32_t pid, const FailedRead& read) {
  constexpr uint64_t kPage = 4096;
  const uint64_t end = read.address + static_cast<uint64_t>(read.bytes);
  for (uint64_t at = read.address; at < end; at = (at / kPage + 1) * kPage) {
    std::byte byte;
    int64_t calls = 0;
    if (read_process(pid, at, &byte, 1, &calls) != 0) return false;
  }
  return true;
}

}  // namespace

Status read_error(const World& world, const FailedRead& read, int err,
                  const std::string& what) {
  const int32_t pid = world.peers[static_cast<size_t>(read.rank)].pid;
  // The kernel does not say which of the two addresses is bad.
  if (err == EFAULT && readable(pid, read)) {
    return errno_error(ALQ_INVALID_ARGUMENT,
                       fmt::format("rank {} can not write {} bytes to its own "
                                   "destination in {}, which must be mapped "
                                   "and writable until that is done",
                                   world.rank, read.bytes, what),
                       err)
        .with_rank(world.rank);
  }
  return errno_error(ALQ_PEER_FAILED,
                     fmt::format("can not read {} bytes of rank {}'s memory in "
                                 "{}",
                                 read.bytes, read.rank, what),
                     err)
      .with_rank(read.rank);
}

}  // namespace aliquot::mem
