#include "support/ranks.h"

#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>

#include "comm/bootstrap/bootstrap.h"

namespace aliquot::test {
namespace {

constexpr int kMost = 64;
constexpr int kCounters = 64;

struct Place {
  std::atomic<int32_t> has_blob{0}, finished{0};
  char blob[1024];
  int32_t blob_bytes;
  char failures[4000];
};

struct Board {
  std::atomic<int64_t> counters[kCounters];
  Place places[kMost];
};

Board* make_board() {
  void* page = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return page == MAP_FAILED ? nullptr : new (page) Board();
}

void nap() { usleep(200); }

Result<std::vector<std::string>> meet(Rank& rank, const RanksOptions& options,
                                      const std::string& mine) {
  if (options.store.empty()) return rank.exchange(mine);
  aliquot::Place place;
  place.rank = place.local_rank = rank.rank;
  place.size = place.local_size = rank.size;
  place.address = options.store;
  place.secret = "of this run";
  Deadline deadline = rank.context->deadline(0);
  ALQ_TRY(rank.context->faults.point("bootstrap.gather"));
  ALQ_ASSIGN(auto store, store_bootstrap(place, deadline));
  if (options.killed_in_store == rank.rank) raise(SIGKILL);
  return store->all_gather(exchange_key("world", 0), mine, deadline);
}

Flight::Names call_names() {
  Flight::Names names;
  for (int32_t k = 0; k <= static_cast<int32_t>(CollKind::kRecv); ++k) {
    names.kinds.emplace_back(coll_name(static_cast<CollKind>(k)));
  }
  for (Dtype d = 0; d <= ALQ_F8E5M2; ++d) {
    names.dtypes.emplace_back(dtype_size(d) == 0 ? "" : dtype_name(d));
  }
  return names;
}

Status join(Rank& rank, const RanksOptions& options) {
  rank.context->timeout_ns = options.deadline_ms * 1'000'000;
  rank.context->time_scale = options.time_scale;
  if (options.stage_limit >= 0) {
    rank.context->stage_sums = options.stage_limit;
    rank.context->stage_copies = options.stage_limit;
  }
  if (options.stage_streams >= 0) {
    rank.context->stage_streams = options.stage_streams != 0;
  }
  ALQ_TRY(rank.context->faults.arm(options.faults));
  if (!options.flight_dir.empty()) {
    ALQ_ASSIGN(
        rank.context->flight,
        Flight::create(options.flight_dir, rank.rank, rank.size, call_names()));
  }
  ALQ_ASSIGN(rank.device, cpu_device(rank.context, options.progress));
  if (!options.join) return {};
  ALQ_ASSIGN(auto mem_join,
             MemJoin::create(rank.context, rank.device, options.cma));
  ALQ_ASSIGN(auto blobs, meet(rank, options, mem_join->blob()));
  ALQ_ASSIGN(rank.group, mem_join->connect(blobs, rank.context->deadline(0)));
  return {};
}

void run_one(Board* board, const RanksOptions& options, int32_t index,
             const std::function<void(Rank&)>& body) {
  Rank rank;
  rank.rank = index;
  rank.size = options.size;
  rank.kind = options.kind;
  rank.board = board;
  rank.context = std::make_shared<Context>(index, options.size);
  rank.context->local_rank = index;
  rank.context->local_size = options.size;
  rank.joined = join(rank, options);
  if (options.faults.empty()) rank.check_ok(rank.joined, "join");
  if (rank.joined.ok() || !options.faults.empty()) body(rank);
  Place& place = board->places[index];
  std::string text = rank.failures();
  text.copy(place.failures, sizeof place.failures - 1);
  rank.group.reset();
  rank.device.reset();
  place.finished.store(1);
}

void run_threads(Board* board, const RanksOptions& options, int32_t first,
                 int32_t last, const std::function<void(Rank&)>& body) {
  std::vector<std::thread> threads;
  for (int32_t i = first; i < last; ++i) {
    threads.emplace_back([&, i] { run_one(board, options, i, body); });
  }
  for (auto& thread : threads) thread.join();
}

struct Child {
  pid_t pid;
  int32_t first, last;
  bool ended = false;
};

void record(RanksResult* result, const Child& child, int status) {
  for (int32_t i = child.first; i < child.last; ++i) {
    RankOutcome& rank = result->ranks[static_cast<size_t>(i)];
    if (WIFEXITED(status)) rank.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) rank.signal = WTERMSIG(status);
  }
}

// Reaps the children until all ended or time is up, then kills the rest.
void reap(std::vector<Child>* children, int64_t timeout_ms,
          RanksResult* result) {
  int64_t end = now_ns() + timeout_ms * 1'000'000;
  for (;;) {
    bool left = false;
    for (Child& child : *children) {
      if (child.ended) continue;
      int status = 0;
      pid_t pid = waitpid(child.pid, &status, WNOHANG | WUNTRACED);
      if (pid == child.pid && !WIFSTOPPED(status)) {
        child.ended = true;
        record(result, child, status);
      } else {
        left = true;
      }
    }
    if (!left) return;
    if (now_ns() > end && !result->timed_out) {
      result->timed_out = true;
      for (Child& child : *children) {
        if (!child.ended) kill(child.pid, SIGKILL);
      }
    }
    nap();
  }
}

void run_processes(Board* board, const RanksOptions& options, int32_t each,
                   const std::function<void(Rank&)>& body,
                   RanksResult* result) {
  std::vector<Child> children;
  for (int32_t first = 0; first < options.size; first += each) {
    int32_t last = std::min(first + each, options.size);
    pid_t pid = fork();
    if (pid == 0) {
      // A test that is killed leaves nobody behind, stopped ranks neither.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (each == 1) {
        run_one(board, options, first, body);
      } else {
        run_threads(board, options, first, last, body);
      }
      _exit(0);
    }
    if (pid > 0) children.push_back({pid, first, last});
  }
  reap(&children, options.timeout_ms, result);
  // All of ours are reaped; whatever remains was left behind by a rank.
  while (waitpid(-1, nullptr, WNOHANG) > 0) ++result->left_children;
}

}  // namespace

const char* kind_name(RankKind kind) {
  switch (kind) {
    case RankKind::kThreads: return "threads";
    case RankKind::kProcesses: return "processes";
    default: return "mixed";
  }
}

void Rank::check(bool good, const std::string& what) {
  if (good) return;
  if (++count_ <= 5) failures_ += fmt::format("[rank {}] {}\n", rank, what);
}

void Rank::check_ok(const Status& status, const std::string& what) {
  check(status.ok(),
        fmt::format("{}: error {} {}", what, status.code(), status.message()));
}

std::string Rank::failures() const {
  if (count_ <= 5) return failures_;
  return failures_ +
         fmt::format("[rank {}] {} failures in all\n", rank, count_);
}

std::vector<std::string> Rank::exchange(const std::string& mine) {
  auto* b = static_cast<Board*>(board);
  Place& own = b->places[rank];
  mine.copy(own.blob, sizeof own.blob);
  own.blob_bytes = static_cast<int32_t>(mine.size());
  own.has_blob.store(1);
  std::vector<std::string> all;
  int64_t end = now_ns() + 10'000'000'000;
  for (int32_t q = 0; q < size; ++q) {
    while (b->places[q].has_blob.load() == 0 && now_ns() < end) nap();
    all.emplace_back(b->places[q].blob,
                     static_cast<size_t>(b->places[q].blob_bytes));
  }
  return all;
}

std::atomic<int64_t>& Rank::shared(int index) {
  return static_cast<Board*>(board)->counters[index];
}

bool RanksResult::ok() const {
  for (const RankOutcome& rank : ranks) {
    if (!rank.finished || rank.exit_code != 0 || rank.signal != 0 ||
        !rank.failures.empty()) {
      return false;
    }
  }
  return !timed_out && left_children == 0;
}

std::string RanksResult::text() const {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankOutcome& rank = ranks[i];
    text += rank.failures;
    if (!rank.finished) {
      text += fmt::format("[rank {}] did not finish (exit {}, signal {})\n", i,
                          rank.exit_code, rank.signal);
    }
  }
  if (timed_out) text += "timed out\n";
  if (left_children != 0) text += "children were left behind\n";
  return text;
}

RanksResult run_ranks(const RanksOptions& options,
                      const std::function<void(Rank&)>& body) {
  RanksResult result;
  result.ranks.resize(static_cast<size_t>(options.size));
  Board* board = make_board();
  if (board == nullptr) return result;
  if (options.kind == RankKind::kThreads) {
    run_threads(board, options, 0, options.size, body);
  } else {
    run_processes(board, options, options.kind == RankKind::kMixed ? 2 : 1,
                  body, &result);
  }
  for (size_t i = 0; i < result.ranks.size(); ++i) {
    result.ranks[i].finished = board->places[i].finished.load() == 1;
    result.ranks[i].failures = board->places[i].failures;
  }
  for (auto& counter : board->counters) {
    result.counters.push_back(counter.load());
  }
  munmap(board, sizeof(Board));
  return result;
}

int open_fds() {
  int count = 0;
  DIR* dir = opendir("/proc/self/fd");
  if (dir == nullptr) return -1;
  while (dirent* entry = readdir(dir)) count += entry->d_name[0] != '.';
  closedir(dir);
  return count - 1;  // the directory itself
}

int memfd_mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("memfd:aliquot") != std::string::npos;
  }
  return count;
}

int thread_count() {
  int count = 0;
  DIR* dir = opendir("/proc/self/task");
  if (dir == nullptr) return -1;
  while (dirent* entry = readdir(dir)) count += entry->d_name[0] != '.';
  closedir(dir);
  return count;
}

}  // namespace aliquot::test
