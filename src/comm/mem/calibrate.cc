#include "comm/mem/calibrate.h"

#include <link.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "comm/mem/poison.h"
#include "comm/mem/staged.h"
#include "kernels/cpu/cpu.h"

namespace aliquot::mem {
namespace {

constexpr int64_t kSmall = 32768, kLarge = 262144;
constexpr int kTimes = 6, kTries = 24;   // the fastest counts
constexpr int64_t kTimeNs = 10'000'000;  // a busy machine gets no more
// Where the lines do not cross.
constexpr int64_t kMost = int64_t{1} << 40;
constexpr int64_t kUncached = int64_t{4} << 20;

// Rank 0's `staged` word when it has stored the result: above all meetings and
// below all tickets of operations.
constexpr uint64_t kMeasured = 1 << 23;
constexpr int64_t kGiveUpNs = 1'000'000'000;  // on a rank that does not come
// Where the ranks never ran side by side.  Streaming is the smaller risk: it
// costs less where caches are shared than the lack of it where they are not.
constexpr int64_t kUnknownSums = 1 << 20, kUnknownCopies = 1 << 16;

enum class Way { kCached, kStreamed, kRead };

// What a rank tells the other at a meeting, in a slot that no operation uses
// yet.
struct Note {
  uint64_t address;  // of its source
  int32_t cpu;
  bool apart, late;
};
static_assert(sizeof(Note) <= kInlineBytes);

// Two ranks of different processes that try out how they exchange data.  They
// meet by their `staged` words, below all tickets of operations.
class Pair {
 public:
  Pair(GroupCore& core, int32_t peer)
      : core_(core),
        peer_(peer),
        src_(kLarge / sizeof(float)),
        dst_(kLarge / sizeof(float)) {}

  // Fails when the other is lost or late.
  Status run(StageLimits* limits) {
    scratch_ = core_.scratch.get(kLarge);
    if (scratch_ == nullptr) {
      return make_error(ALQ_RESOURCE_EXHAUSTED, "no memory for {} bytes",
                        kLarge);
    }
    note(core_.rank).address = reinterpret_cast<uint64_t>(src_.data());
    ALQ_TRY(meet());
    from_ = note(peer_).address;
    double cached = 0, streamed = 0;
    ALQ_TRY(best(Way::kCached, false, kLarge, &cached));
    ALQ_TRY(best(Way::kStreamed, false, kLarge, &streamed));
    limits->streams = !known_ || streamed < cached;
    if (!core_.world->cma) return meet();
    const Way staged = limits->streams ? Way::kStreamed : Way::kCached;
    for (bool sums : {false, true}) {
      Trials t{kSmall, kLarge};
      ALQ_TRY(best(staged, sums, kSmall, &t.staged_small));
      ALQ_TRY(best(staged, sums, kLarge, &t.staged_large));
      ALQ_TRY(best(Way::kRead, sums, kSmall, &t.read_small));
      ALQ_TRY(best(Way::kRead, sums, kLarge, &t.read_large));
      (sums ? limits->sums : limits->copies) = crossing(t);
    }
    if (!known_) *limits = {kUnknownSums, kUnknownCopies, limits->streams};
    return meet();  // before the other's memory goes away
  }

 private:
  Note& note(int32_t q) {
    return *reinterpret_cast<Note*>(core_.control.slot(q, 0).payload);
  }

  Status meet() {
    auto word = [this](int32_t q) -> std::atomic<uint64_t>& {
      return core_.control.member(q).staged.value;
    };
    const uint64_t mine = ++meetings_;
    word(core_.rank).store(mine);
    core_.ring_peers();
    auto poll = [&](bool) {
      if (word(peer_).load() >= mine) return Step::kDone;
      return poisoned(core_) ? Step::kFailed : Step::kWaiting;
    };
    core_.world->runner->wait(Poll(poll), deadline_);
    if (word(peer_).load() >= mine) return {};
    return make_error(ALQ_UNAVAILABLE, "rank {} does not take part",
                      core_.world_rank(peer_));
  }

  // Seconds of the fastest of several exchanges of `bytes` each way.  Those
  // during which the ranks shared a core, or moved, say nothing.  Rank 0 says
  // when the time is up.
  Status best(Way way, bool sums, int64_t bytes, double* seconds) {
    int64_t least = INT64_MAX;
    Note& mine = note(core_.rank);
    for (int i = 0, good = 0; known_ && i < kTries && good < kTimes; ++i) {
      // As after a computation: what is sent was written just now.
      std::fill_n(src_.begin(), bytes / int64_t{sizeof(float)},
                  static_cast<float>(i));
      mine.cpu = sched_getcpu();
      ALQ_TRY(meet());
      const int64_t begin = now_ns();
      bool done = true;
      if (way == Way::kRead) {
        done = exchange_read(sums, bytes);
      } else {
        ALQ_TRY(exchange_staged(way, sums, bytes));
      }
      const int64_t end = now_ns();
      mine.apart = done && mine.cpu >= 0 && mine.cpu != note(peer_).cpu &&
                   mine.cpu == sched_getcpu();
      mine.late = end > end_;
      ALQ_TRY(meet());
      if (mine.apart && note(peer_).apart) {
        ++good;
        least = std::min(least, end - begin);
      }
      if (note(0).late) known_ = false;  // nothing more is measured
    }
    known_ = known_ && least != INT64_MAX;
    *seconds = static_cast<double>(least) * 1e-9;
    return {};
  }

  Status exchange_staged(Way way, bool sums, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += kPlaceBytes) {
      const int64_t n = std::min(kPlaceBytes, bytes - at);
      const int64_t window = at % (kRing * kPlaceBytes);
      std::byte* stage = core_.control.stage(core_.rank) + window;
      if (way == Way::kStreamed) {
        kernels::copy_cold_cpu({stage, src(at), n});
        kernels::flush_cold_cpu();
      } else {
        kernels::copy_even_cpu({stage, src(at), n});
      }
      ALQ_TRY(meet());
      combine(sums, core_.control.stage(peer_) + window, at, n);
    }
    return {};
  }

  // Fails when the other has ended, which the next meeting finds.
  bool exchange_read(bool sums, int64_t bytes) {
    std::byte* to = sums ? scratch_ : reinterpret_cast<std::byte*>(dst_.data());
    int64_t calls = 0;
    if (read_process(core_.pid(peer_), from_, to, bytes, &calls) != 0) {
      return false;
    }
    if (sums) combine(true, scratch_, 0, bytes);
    return true;
  }

  // dst = own source + theirs, or theirs.
  void combine(bool sums, const std::byte* theirs, int64_t at, int64_t n) {
    auto* to = reinterpret_cast<std::byte*>(dst_.data()) + at;
    if (!sums) {
      kernels::copy_even_cpu({to, theirs, n});
      return;
    }
    const void* srcs[2] = {src(at), theirs};
    kernels::reduce_cpu({to, srcs, 2, n / int64_t{sizeof(float)}, ALQ_F32,
                         ALQ_F32, ALQ_SUM, 0, 1.0});
  }

  const std::byte* src(int64_t at) const {
    return reinterpret_cast<const std::byte*>(src_.data()) + at;
  }

  GroupCore& core_;
  const int32_t peer_;
  const Deadline deadline_ = Deadline::after(kGiveUpNs);
  std::vector<float> src_, dst_;
  std::byte* scratch_ = nullptr;
  uint64_t from_ = 0;  // the other's source
  uint64_t meetings_ = 0;
  const int64_t end_ = now_ns() + kTimeNs;
  bool known_ = true;  // all that was measured so far
};

}  // namespace

int64_t crossing(const Trials& t) {
  const auto small = static_cast<double>(t.small_bytes);
  const double apart = static_cast<double>(t.large_bytes) - small;
  // How much longer staging takes, and how that grows per byte.
  const double more = t.staged_small - t.read_small;
  const double growth = (t.staged_large - t.read_large - more) / apart;
  if (growth <= 0) return t.staged_large <= t.read_large ? kMost : 0;
  const double at = small - more / growth;
  return static_cast<int64_t>(std::clamp(at, 0.0, static_cast<double>(kMost)));
}

namespace {

#ifdef MADV_POPULATE_READ
// Maps the code around `inside`, which is in the page cache, before it is run.
int map_code(dl_phdr_info* info, size_t, void* inside) {
  const auto at = reinterpret_cast<uintptr_t>(inside);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    if (part.p_type != PT_LOAD || at < begin || at >= begin + part.p_memsz) {
      continue;
    }
    const uintptr_t page = begin / 4096 * 4096;
    madvise(reinterpret_cast<void*>(page), begin + part.p_memsz - page,
            MADV_POPULATE_READ);
    return 1;
  }
  return 0;
}
#endif

// The first operations find their memory backed and mapped.
void back(const GroupCore& core) {
#ifdef MADV_POPULATE_WRITE
  constexpr int32_t kFew = 8;  // ranks, whose windows are mapped too
  // Where the system can not, the pages come when they are used.
  madvise(core.segment->data(),
          static_cast<size_t>(Control::hot_bytes(core.size)),
          MADV_POPULATE_WRITE);
  for (int32_t q = 0; q < core.size; ++q) {
    if (q != core.rank && core.size > kFew) continue;
    madvise(core.control.stage(q), kRing * kPlaceBytes, MADV_POPULATE_WRITE);
  }
#endif
#ifdef MADV_POPULATE_READ
  dl_iterate_phdr(map_code, reinterpret_cast<void*>(&crossing));
#endif
}

// What does not fit into caches is read much more slowly than was measured, and
// faster again once it lies on huge pages: it is staged until trials know.
void stage_large(Header& header, Moved what, bool streams) {
  const int32_t last = moved_kind(what, kMost);
  for (int32_t kind = moved_kind(what, kUncached); kind <= last; ++kind) {
    header.ways[kind].store(streams ? kStreamed : kCached);
  }
}

// All leave the join at about the same time.
void await_result(const GroupCore& core) {
  auto poll = [&](bool) {
    if (core.control.member(0).staged.value.load() >= kMeasured) {
      return Step::kDone;
    }
    return poisoned(core) ? Step::kFailed : Step::kWaiting;
  };
  core.world->runner->wait(Poll(poll), Deadline::after(kGiveUpNs));
}

}  // namespace

void calibrate(GroupCore& core) {
  if (core.one_process) return;
  back(core);
  int32_t other = 1;
  while (core.pid(other) == core.pid(0)) ++other;
  if (core.rank != 0 && core.rank != other) return await_result(core);
  StageLimits limits;
  Pair pair(core, core.rank == 0 ? other : 0);
  // The world is made: who fails or is late here is found by operations.
  if (!pair.run(&limits).ok()) {
    limits = {kUnknownSums, kUnknownCopies, limits.streams};
  }
  if (core.rank != 0) return await_result(core);
  // Nobody chooses before rank 0 has announced its first operation.
  const Context& context = *core.world->context;
  Header& header = core.control.header();
  header.stage_sums.store(context.stage_sums.value_or(limits.sums));
  header.stage_copies.store(context.stage_copies.value_or(limits.copies));
  const bool streams = context.stage_streams.value_or(limits.streams);
  header.streams.store(streams);
  if (!context.stage_sums.has_value()) {
    stage_large(header, Moved::kReduced, streams);
    stage_large(header, Moved::kSums, streams);
  }
  if (!context.stage_copies.has_value()) {
    stage_large(header, Moved::kCopies, streams);
  }
  core.self().staged.value.store(kMeasured);
  core.ring_peers();
}

StageLimits stage_limits(const World& world) {
  const Header& header = world.control.header();
  return {header.stage_sums.load(), header.stage_copies.load(),
          header.streams.load()};
}

}  // namespace aliquot::mem
