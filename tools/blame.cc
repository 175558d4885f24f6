#include "tools/blame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <set>

#include "tools/commands.h"

namespace aliquot::tools {
namespace {

std::string rank_list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += fmt::format("{}", ranks[i]);
  }
  return text;
}

const FlightRank* find(const std::vector<FlightRank>& ranks, int rank) {
  for (const FlightRank& r : ranks) {
    if (r.rank == rank) return &r;
  }
  return nullptr;
}

std::string op_in_group(const FlightOp& op) {
  return fmt::format("{} of group \"{}\"", op.text, op.group);
}

// The operation a rank was in: the oldest unfinished one, else null.
const FlightOp* current(const FlightRank& rank) {
  for (const FlightOp& op : rank.ops) {
    if (op.pending()) return &op;
  }
  return nullptr;
}

const FlightOp* last_failed(const FlightRank& rank) {
  for (auto op = rank.ops.rbegin(); op != rank.ops.rend(); ++op) {
    if (op->state == kFlightError) return &*op;
  }
  return nullptr;
}

std::string where(const FlightRank& rank) {
  if (const FlightOp* op = current(rank); op != nullptr) {
    return "in " + op_in_group(*op);
  }
  if (rank.ops.empty()) return "before its first operation";
  return "after " + op_in_group(rank.ops.back());
}

// What the others were in, ranks of the same operation together.
std::string others(const std::vector<FlightRank>& ranks,
                   const std::vector<int>& culprits) {
  std::map<std::string, std::vector<int>> in;
  for (const FlightRank& rank : ranks) {
    if (std::count(culprits.begin(), culprits.end(), rank.rank) > 0) continue;
    const FlightOp* op = current(rank);
    if (op == nullptr) op = last_failed(rank);
    if (op != nullptr) in[op_in_group(*op)].push_back(rank.rank);
  }
  std::vector<std::string> parts;
  for (const auto& [op, who] : in) {
    parts.push_back(fmt::format("{} {} waiting in {}", rank_list(who),
                                who.size() == 1 ? "was" : "were", op));
  }
  return parts.empty() ? "" : fmt::format("; {}", fmt::join(parts, "; "));
}

// The rank that most errors name; the earliest error decides a tie.
int most_named(const std::vector<FlightRank>& ranks) {
  std::map<int, int> votes;
  std::map<int, int64_t> first;
  for (const FlightRank& rank : ranks) {
    if (rank.error_rank < 0) continue;
    ++votes[rank.error_rank];
    auto [at, fresh] = first.try_emplace(rank.error_rank, rank.error_ns);
    if (!fresh) at->second = std::min(at->second, rank.error_ns);
  }
  int best = -1;
  for (const auto& [rank, count] : votes) {
    if (best < 0 || count > votes[best] ||
        (count == votes[best] && first[rank] < first[best])) {
      best = rank;
    }
  }
  return best;
}

// What errors name; how it ended, if the launcher saw that first, is more.
Blame named(const std::vector<FlightRank>& ranks, int culprit,
            const FirstGone& gone) {
  const FlightRank* rank = find(ranks, culprit);
  std::string reason;
  for (const FlightRank& r : ranks) {
    if (r.error_rank == culprit && (reason.empty() || r.rank == culprit)) {
      reason = r.error;
    }
  }
  std::string who = fmt::format("rank {}", culprit);
  if (rank == nullptr) {
    return {{culprit},
            fmt::format("{} left no record: {}{}", who, reason,
                        others(ranks, {culprit}))};
  }
  who += fmt::format(" (process {} on {})", rank->pid, rank->host);
  std::string what = "failed";
  // One that aborted its groups said why; others found it gone.
  bool said = reason.find("abort") != std::string::npos;
  if (rank->died()) {
    what = said ? "gave up"
           : gone.rank == culprit && !gone.how.empty()
               ? gone.how
               : "died without an error";
  }
  if (rank->stopped) what = "is stopped";
  if (rank->alive && !rank->stopped && rank->ending == kFlightOpen) {
    what = "did not answer";
  }
  return {{culprit},
          fmt::format("{} {} {}{} ({})", who, what, where(*rank),
                      others(ranks, {culprit}), reason)};
}

// how: "" if not known.
Blame silent(const std::vector<FlightRank>& ranks, const std::vector<int>& dead,
             const std::string& how) {
  const FlightRank& first = *find(ranks, dead[0]);
  return {dead, fmt::format("{} {} {}{}", rank_list(dead),
                            how.empty() ? "died without an error" : how,
                            where(first), others(ranks, dead))};
}

struct Late {
  std::vector<int> ranks;
  const FlightOp* op = nullptr;  // what they have not called
};

// Whether a rank has called what `waiting` waits for in op: the same one, or
// the other end of a message.
bool has_called(const FlightRank& rank, const FlightRank& waiting,
                const FlightOp& op) {
  return std::any_of(rank.ops.begin(), rank.ops.end(), [&](const FlightOp& o) {
    if (o.group != op.group || o.members != op.members || o.number < op.number)
      return false;
    if (!op.is_message()) return !o.is_message();
    return o.peer == waiting.rank && o.sends != op.sends;
  });
}

// The ranks that have not called what others wait in.
Late laggards(const std::vector<FlightRank>& ranks) {
  for (const FlightRank& waiting : ranks) {
    const FlightOp* op = current(waiting);
    if (op == nullptr) continue;
    const std::vector<int> ends = {op->peer};
    std::vector<int> late;
    for (int member : op->is_message() ? ends : op->members) {
      const FlightRank* rank = find(ranks, member);
      bool called = rank != nullptr && has_called(*rank, waiting, *op);
      if (!called) late.push_back(member);
    }
    if (!late.empty()) return {late, op};
  }
  return {};
}

Blame waited_for(const std::vector<FlightRank>& ranks) {
  Late late = laggards(ranks);
  if (late.ranks.empty()) {
    return {{}, "nobody failed, and no rank waits for one that has not come"};
  }
  bool one = late.ranks.size() == 1;
  const FlightRank* first = find(ranks, late.ranks[0]);
  return {late.ranks,
          fmt::format("{} {} not called {}; {} {}{}", rank_list(late.ranks),
                      one ? "has" : "have", op_in_group(*late.op),
                      one ? "it is" : "the first is",
                      first == nullptr ? "without a record" : where(*first),
                      others(ranks, late.ranks))};
}

}  // namespace

Blame blame(const std::vector<FlightRank>& ranks, const FirstGone& gone) {
  int culprit = most_named(ranks);
  if (culprit >= 0) return named(ranks, culprit, gone);
  const FlightRank* first = find(ranks, gone.rank);
  if (first != nullptr && first->died()) {
    return silent(ranks, {gone.rank}, gone.how);
  }
  std::vector<int> dead, missed;
  const std::vector<int> late = laggards(ranks).ranks;
  for (const FlightRank& rank : ranks) {
    if (!rank.died()) continue;
    dead.push_back(rank.rank);
    if (std::count(late.begin(), late.end(), rank.rank) > 0) {
      missed.push_back(rank.rank);
    }
  }
  if (!missed.empty()) return silent(ranks, missed, "");
  if (!dead.empty()) return silent(ranks, dead, "");
  return waited_for(ranks);
}

void add_blame(CLI::App& app, int* code) {
  CLI::App* sub = app.add_subcommand(
      "blame",
      "Say in one sentence who made a job fail, from its flight files");
  auto folder = std::make_shared<std::string>();
  auto all = std::make_shared<bool>(false);
  sub->add_option("folder", *folder, "Where the ranks recorded")
      ->envname("ALIQUOT_FLIGHT_DIR")
      ->required();
  sub->add_flag("--ranks", *all, "Also a line about each rank");
  sub->footer("Example: aliquot blame /tmp/flight");
  sub->callback([=] {
    std::string left_out;
    std::vector<FlightRank> ranks = read_flights(*folder, &left_out);
    if (!left_out.empty()) fmt::print(stderr, "{}\n", left_out);
    if (ranks.empty()) {
      fmt::print(stderr,
                 "aliquot blame: no rank-N.flight in {}; set "
                 "ALIQUOT_FLIGHT_DIR, or run with aliquot run --flight\n",
                 *folder);
      *code = kUsage;
      return;
    }
    Blame result = blame(ranks, read_first_gone(*folder));
    fmt::print("{}\n", result.sentence);
    for (const FlightRank& rank : ranks) {
      if (*all) {
        fmt::print("rank {}: {}, {}\n", rank.rank,
                   rank.ending == kFlightClosed   ? "closed in order"
                   : rank.ending == kFlightFailed ? "failed: " + rank.error
                   : rank.alive                   ? "running"
                                                  : "gone",
                   where(rank));
      }
    }
    *code = result.culprits.empty() ? 1 : 0;
  });
}

}  // namespace aliquot::tools
