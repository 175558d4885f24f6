// Runs N ranks for a test: as threads, as forked processes, or mixed.
//
//   RanksResult r = run_ranks(options(4, RankKind::kProcesses),
//                             [](Rank& rank) { ... rank.check(...) ... });
//   BOOST_TEST(r.ok(), r.text());
//
// Processes are forked, so no thread may exist in the caller then; blobs go
// through a page shared with the children.  A rank reports failures as text.
// After the time-out the processes started here are killed; all are reaped.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/mem/join.h"

namespace aliquot::test {

enum class RankKind { kThreads, kProcesses, kMixed };  // mixed: 2 per process
const char* kind_name(RankKind kind);

// Under the thread sanitizer threads stand for processes too: it can not see
// from one process into another.
#ifdef __SANITIZE_THREAD__
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif
// Tests that are long do less there.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
inline std::vector<RankKind> kinds() {
  if (kThreadSanitizer) return {RankKind::kThreads};
  return {RankKind::kThreads, RankKind::kProcesses};
}

struct RanksOptions {
  int32_t size = 2;
  RankKind kind = RankKind::kThreads;
  int64_t timeout_ms = 40'000;  // kills what is left
  int32_t progress = ALQ_PROGRESS_OFF;
  int64_t deadline_ms = 10'000;  // the context's default
  double time_scale = 1;         // of detector constants
  std::string faults;            // armed before the join
  bool cma = true;               // may read other processes' memory
  // Bytes up to which private memory is staged; negative: as measured.
  int64_t stage_limit = -1;
  int32_t stage_streams = -1;  // past the caches: 1, 0, or as measured
  bool join = true;            // false: rank.group stays null
  // "host:port" of a store that rank 0 serves and the ranks meet at; "": they
  // meet in memory of the test.
  std::string store = {};
  int32_t killed_in_store = -1;  // this rank, between join and exchange
  std::string flight_dir = {};   // where every rank keeps a flight recorder
};

inline RanksOptions options(int32_t size, RankKind kind) {
  RanksOptions options;
  options.size = size;
  options.kind = kind;
  return options;
}

class Rank {
 public:
  int32_t rank = 0, size = 1;
  RankKind kind = RankKind::kThreads;
  std::shared_ptr<Context> context;
  std::shared_ptr<CpuDevice> device;
  std::shared_ptr<Group> group;  // the world
  Status joined;                 // how the join ended

  // Records a failure unless `good`.
  void check(bool good, const std::string& what);
  void check_ok(const Status& status, const std::string& what);
  // Of this run, the first few.
  std::string failures() const;

  // Brings every rank's text to every rank; at most 1 KiB each, used once.
  std::vector<std::string> exchange(const std::string& mine);
  // A counter in memory that all ranks of the run share, zero at first.
  std::atomic<int64_t>& shared(int index);

  // For the runner.
  void* board = nullptr;

 private:
  std::string failures_;
  int count_ = 0;
};

struct RankOutcome {
  bool finished = false;  // the body returned
  int exit_code = 0, signal = 0;
  std::string failures;
};

struct RanksResult {
  std::vector<RankOutcome> ranks;
  bool timed_out = false;
  int left_children = 0;          // processes that were not reaped
  std::vector<int64_t> counters;  // Rank::shared, at the end
  bool ok() const;
  std::string text() const;
};

RanksResult run_ranks(const RanksOptions& options,
                      const std::function<void(Rank&)>& body);

// Open file descriptors of this process, and mappings of memfds in it.
int open_fds();
int memfd_mappings();
// Threads of this process.
int thread_count();

}  // namespace aliquot::test
