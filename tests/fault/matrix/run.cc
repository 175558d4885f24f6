#include "fault/matrix/run.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "fault/matrix/scenes.h"
#include "support/free_port.h"
#include "tools/blame.h"

namespace aliquot::test {
namespace {

// A folder for flight recorders, gone with the run.
class Folder {
 public:
  explicit Folder(bool wanted) {
    char name[] = "/tmp/aliquot-matrix-XXXXXX";
    if (wanted && mkdtemp(name) != nullptr) path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string outcome_text(const Run& run, const RanksResult& result) {
  std::string text;
  if (result.timed_out) text += "HANG\n";
  if (result.left_children != 0) text += "processes were left behind\n";
  for (size_t i = 0; i < result.ranks.size(); ++i) {
    const RankOutcome& rank = result.ranks[i];
    bool victim = is_victim(run, static_cast<int32_t>(i));
    text += rank.failures;
    if (!rank.finished && !victim) {
      text += fmt::format("[rank {}] did not finish: exit {}, signal {}\n", i,
                          rank.exit_code, rank.signal);
    }
    bool crashed = rank.signal != 0 && rank.signal != SIGKILL;
    if (crashed) text += fmt::format("[rank {}] signal {}\n", i, rank.signal);
  }
  return text;
}

// What the records say about who it was and what the others waited in.
std::string blame_text(const Run& run, const std::string& folder) {
  std::string why;
  auto ranks = tools::read_flights(folder, &why);
  tools::Blame blame = tools::blame(ranks);
  std::string who = fmt::format("rank {}", run.victim);
  bool named = std::count(blame.culprits.begin(), blame.culprits.end(),
                          run.victim) == 1 &&
               blame.sentence.find(who) != std::string::npos;
  std::string op = run.op == Op::kMessages ? "recv" : op_name(run.op);
  // Of messages a rank waits in either half.
  bool waits = blame.sentence.find(op) != std::string::npos ||
               (run.op == Op::kMessages &&
                blame.sentence.find("send") != std::string::npos);
  if (named && waits) return "";
  return fmt::format("blame says: {} ({})\n", blame.sentence, why);
}

}  // namespace

bool can_blame(const Run& run) {
  bool kind = run.fault == Fault::kKill || run.fault == Fault::kStoreHost ||
              run.fault == Fault::kStop || run.fault == Fault::kLate;
  return kind && run.kind == RankKind::kProcesses && run.size == 4 &&
         run.shape == Shape::kInline;
}

RunResult run_once(const Run& run, bool blame) {
  RanksOptions options = options_of(run);
  bool store = run.fault == Fault::kStoreHost ||
               (run.fault == Fault::kInit && run.kind != RankKind::kThreads);
  if (store) options.store = fmt::format("127.0.0.1:{}", free_port());
  blame = blame && can_blame(run);
  Folder folder(blame);
  options.flight_dir = folder.path();
  int64_t start = now_ns();
  RanksResult result = run_ranks(options, [&](Rank& rank) {
    // A join that failed took this long.
    if (run.fault == Fault::kInit && rank.rank != run.victim) {
      rank.shared(kWorstNs).store(now_ns() - start);
    }
    play(rank, run);
  });
  RunResult out;
  out.text = outcome_text(run, result);
  if (blame) out.text += blame_text(run, folder.path());
  out.blamed = blame;
  out.passed = out.text.empty();
  if (result.counters.size() > kWorstNs) {
    out.worst_ns = result.counters[kWorstNs];
  }
  return out;
}

}  // namespace aliquot::test
