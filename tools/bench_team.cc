#include "tools/bench_team.h"

#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

namespace aliquot::tools {
namespace {

constexpr double kBarrierLimit = 120;  // seconds
constexpr size_t kHuge = size_t{2} << 20;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void* map_shared(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  madvise(p, bytes, MADV_HUGEPAGE);
  return p;
}

size_t round_up(size_t bytes) { return (bytes + kHuge - 1) / kHuge * kHuge; }

[[noreturn]] void be_rank(Team& team, pid_t parent,
                          const std::function<int(Team&)>& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  int code = body(team);
  std::fflush(nullptr);
  _exit(code);
}

// The first failure ends the others.
int wait_for(std::vector<pid_t>& pids, TeamShared* shared) {
  int failed = 0;
  for (size_t left = pids.size(); left > 0; --left) {
    int status = 0;
    pid_t pid = -1;
    while ((pid = waitpid(-1, &status, 0)) < 0 && errno == EINTR) {
    }
    auto it = std::find(pids.begin(), pids.end(), pid);
    if (it == pids.end()) continue;
    *it = -1;
    if (status == 0 || failed != 0) continue;
    failed = 1;
    shared->stop = true;
    for (pid_t other : pids) {
      if (other > 0) kill(other, SIGKILL);
    }
    if (WIFSIGNALED(status)) {
      fmt::print(stderr, "aliquot bench: a rank was killed by signal {} ({})\n",
                 WTERMSIG(status), strsignal(WTERMSIG(status)));
    }
  }
  for (size_t r = 0; r < pids.size(); ++r) {
    const char* error = shared->slots[r].error;
    if (*error != 0)
      fmt::print(stderr, "aliquot bench: rank {}: {}\n", r, error);
  }
  return failed;
}

}  // namespace

double now_s() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return CPU_COUNT(&set);
}

Team::Team(TeamShared* shared, char* memory, size_t bytes, int rank, int size)
    : shared_(shared),
      memory_(memory),
      bytes_(bytes),
      rank_(rank),
      size_(size),
      spins_(size <= usable_cores() ? 200 : 0) {}

void Team::barrier() {
  uint64_t mine = ++epoch_;
  shared_->slots[rank_].epoch.store(mine);
  double start = 0;
  for (int r = 0; r < size_; ++r) {
    int spins = 0;
    while (shared_->slots[r].epoch.load() < mine) {
      if (++spins <= spins_) {
        pause_cpu();
        continue;
      }
      if (shared_->stop) _exit(1);
      if (start == 0) start = now_s();
      if (now_s() - start > kBarrierLimit) {
        fail(fmt::format("rank {} did not come within {} s", r, kBarrierLimit));
      }
      sched_yield();
    }
  }
}

std::vector<PeerMemory> Team::tell_memory(const PeerMemory& mine) {
  shared_->slots[rank_].memory = mine;
  barrier();
  std::vector<PeerMemory> all;
  for (int r = 0; r < size_; ++r) all.push_back(shared_->slots[r].memory);
  barrier();
  return all;
}

double Team::largest(double mine) {
  shared_->slots[rank_].value = mine;
  barrier();
  double most = mine;
  for (int r = 0; r < size_; ++r) {
    most = std::max(most, shared_->slots[r].value);
  }
  barrier();  // before anyone writes the next value
  return most;
}

double Team::of_rank_0(double mine) {
  shared_->slots[rank_].value = mine;
  barrier();
  double value = shared_->slots[0].value;
  barrier();
  return value;
}

float* Team::memory(int rank) const {
  return reinterpret_cast<float*>(memory_ +
                                  round_up(bytes_) * static_cast<size_t>(rank));
}

alq_context* Team::open(const char* hints) {
  alq_open_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.bootstrap = ALQ_BOOTSTRAP_BYTES;
  desc.rank = desc.local_rank = rank_;
  desc.world_size = desc.local_size = size_;
  desc.hints = hints;
  desc.timeout_ns = 120'000'000'000;
  alq_error error = {};
  error.struct_size = sizeof error;
  alq_context* context = nullptr;
  check(alq_open(ALQ_ABI_VERSION, &desc, &context, &error), error, "alq_open");
  TeamSlot& slot = shared_->slots[rank_];
  check(alq_bootstrap_blob(context, slot.blob, sizeof slot.blob,
                           &slot.blob_bytes, &error),
        error, "alq_bootstrap_blob");
  barrier();
  std::string blobs;
  for (int r = 0; r < size_; ++r) {
    blobs.append(shared_->slots[r].blob, slot.blob_bytes);
  }
  check(alq_connect(context, blobs.data(), slot.blob_bytes, 0, &error), error,
        "alq_connect");
  return context;
}

void Team::check(alq_status status, const alq_error& error, const char* what) {
  if (status == ALQ_OK) return;
  fail(fmt::format("{}: {}: {}", what, alq_status_name(status), error.message));
}

void Team::fail(const std::string& why) {
  TeamSlot& slot = shared_->slots[rank_];
  slot.error[why.copy(slot.error, sizeof slot.error - 1)] = 0;
  shared_->stop = true;
  std::fflush(nullptr);
  _exit(1);
}

int run_team(int ranks, size_t bytes, const std::function<int(Team&)>& body) {
  auto* shared = static_cast<TeamShared*>(map_shared(sizeof(TeamShared)));
  size_t total =
      round_up(std::max<size_t>(bytes, 1)) * static_cast<size_t>(ranks);
  auto* memory = static_cast<char*>(map_shared(total));
  if (shared == nullptr || memory == nullptr) {
    fmt::print(stderr,
               "aliquot bench: cannot map {} bytes of shared memory: "
               "{}; use smaller --sizes\n",
               total, std::strerror(errno));
    return 1;
  }
  std::fflush(nullptr);
  std::vector<pid_t> pids;
  pid_t parent = getpid();
  for (int r = 0; r < ranks; ++r) {
    pid_t pid = fork();
    if (pid == 0) {
      Team team(shared, memory, bytes, r, ranks);
      be_rank(team, parent, body);
    }
    if (pid < 0) {
      fmt::print(stderr, "aliquot bench: cannot start rank {}: {}\n", r,
                 std::strerror(errno));
      shared->stop = true;
      break;
    }
    pids.push_back(pid);
  }
  int code = wait_for(pids, shared);
  if (pids.size() < static_cast<size_t>(ranks)) code = 1;
  munmap(memory, total);
  munmap(shared, sizeof(TeamShared));
  return code;
}

}  // namespace aliquot::tools
