#include "fault/matrix/report.h"

#include <set>
#include <sstream>

namespace aliquot::test {
namespace {

constexpr const char* kIntro = R"(# Faults

What happens to the other ranks when one fails. Each cell counts runs of the test
program `fault_matrix` as passed / run: a world of 2 or of 4 ranks, a fault placed
at a point within (or around) the operation, in data of several sizes and places.
A run passes when

- no rank waits longer than the detector and a second allow, and nothing hangs;
- every result that a call reports as good is compared with what must come out;
- every survivor's error has the right code, names the culprit, and so does every
  later call on the group;
- then, where ranks are gone or differed, the survivors shrink the group
  (`alq_group_shrink`), end with the same members, and the same operation is right
  in the new one; a rank that was stopped and wakes up is fenced: all its calls
  say that it was removed.

Detector constants are scaled by 1/100. "Worst" is the longest failing call of a
survivor in milliseconds, from its beginning, so it holds the time until the fault
occurred and, where ranks wait for a deadline, that deadline (100 ms). "At
defaults" is one run with 4 processes and unscaled constants; there a rank that
does not come has a deadline of 2 s, and one that is stopped may be so for 5 s.
Threads have no row where a fault needs a process of its own.

)";

constexpr const char* kWrittenBy =
    "Written by `fault_matrix --report docs/faults.md --repeat {} --defaults`: "
    "{} runs, {} passed; of those the sentence of `aliquot blame` was compared "
    "in {}.\n";

std::string milliseconds(int64_t ns) {
  return fmt::format("{}", (ns + 999'999) / 1'000'000);
}

std::string ranks_name(RankKind kind) {
  return kind == RankKind::kThreads ? "threads" : "processes";
}

}  // namespace

void Report::add(const Run& run, const RunResult& result) {
  Tally& cell = cells_[{run.fault, run.kind, run.op}];
  ++cell.run, ++run_;
  blamed_ += result.blamed;
  if (!result.passed) return;
  ++cell.passed, ++passed_;
  cell.worst_ns = std::max(cell.worst_ns, result.worst_ns);
}

void Report::add_default(const Run& run, const RunResult& result) {
  ++run_;
  passed_ += result.passed;
  defaults_[run.fault] = result.passed ? result.worst_ns : -1;
}

std::string Report::row(Fault fault, RankKind kind) const {
  std::string text =
      fmt::format("| {} | {} |", fault_name(fault), ranks_name(kind));
  int64_t worst = 0;
  bool any = false;
  for (int op = 0; op < kOps; ++op) {
    auto cell = cells_.find({fault, kind, static_cast<Op>(op)});
    if (cell == cells_.end()) {
      text += " |";
      continue;
    }
    any = true;
    const Tally& t = cell->second;
    worst = std::max(worst, t.worst_ns);
    text += fmt::format(" {}/{} |", t.passed, t.run);
  }
  if (!any) return "";
  auto at = defaults_.find(fault);
  bool shown = kind == RankKind::kProcesses && at != defaults_.end();
  return text + fmt::format(" {} | {} |\n", milliseconds(worst),
                            !shown           ? ""
                            : at->second < 0 ? "failed"
                                             : milliseconds(at->second));
}

std::string Report::markdown(int repeats) const {
  std::string text = kIntro;
  text += "| fault | ranks |";
  std::string line = "|---|---|";
  for (int op = 0; op < kOps; ++op) {
    text += fmt::format(" {} |", op_name(static_cast<Op>(op)));
    line += "--:|";
  }
  text += " worst, ms | at defaults, ms |\n" + line + "--:|--:|\n";
  for (int f = 0; f < kFaults; ++f) {
    for (RankKind kind : {RankKind::kProcesses, RankKind::kThreads}) {
      text += row(static_cast<Fault>(f), kind);
    }
  }
  text +=
      "\nA fault during init meets no operation: its runs stand under "
      "barrier.\n"
      "Of messages whose count or type differs, either end may be the odd one, "
      "so either\nmay be named; one who calls a collective while the others "
      "exchange messages, or two\ngroups in another order, is found at the "
      "deadline, and the error says what it waits\nin.\n\n";
  return text + fmt::format(kWrittenBy, repeats, run_, passed_, blamed_);
}

std::string check_page(const std::string& page) {
  std::map<std::pair<std::string, std::string>, std::map<int, int64_t>> want;
  for (const Run& run : all_runs()) {
    ++want[{fault_name(run.fault), ranks_name(run.kind)}]
          [static_cast<int>(run.op)];
  }
  std::istringstream lines(page);
  size_t rows = 0;
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> fields;
    std::istringstream parts(line);
    for (std::string part; std::getline(parts, part, '|');) {
      size_t begin = part.find_first_not_of(' ');
      size_t end = part.find_last_not_of(' ');
      fields.push_back(begin == std::string::npos
                           ? ""
                           : part.substr(begin, end - begin + 1));
    }
    if (fields.size() < 3) continue;
    auto row = want.find({fields[1], fields[2]});
    if (row == want.end()) continue;
    ++rows;
    for (int op = 0; op < kOps; ++op) {
      const std::string& got = fields[static_cast<size_t>(op) + 3];
      auto cell = row->second.find(op);
      long long passed = 0, run = 0;
      int read = sscanf(got.c_str(), "%lld/%lld", &passed, &run);
      int64_t each = cell == row->second.end() ? 0 : cell->second;
      bool good = each == 0 ? got.empty()
                            : read == 2 && passed == run && run % each == 0;
      if (good) continue;
      return fmt::format("{}, {}, {}: \"{}\", of {} runs", fields[1], fields[2],
                         op_name(static_cast<Op>(op)), got, each);
    }
  }
  if (rows == want.size()) return "";
  return fmt::format("{} of {} rows", rows, want.size());
}

}  // namespace aliquot::test
