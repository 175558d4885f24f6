#include "tools/blame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <utility>

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

// exited: a rank that exits by itself is in none, but may have left one.
std::string where(const FlightRank& rank, bool exited = false) {
  if (const FlightOp* op = current(rank); op != nullptr) {
    return exited ? "while " + op_in_group(*op) + " was under way"
                  : "in " + op_in_group(*op);
  }
  if (rank.ops.empty()) return "before its first operation";
  return "after " + op_in_group(rank.ops.back());
}

// What the others were in, ranks of the same operation together; not said of
// an operation that was under way.
std::string others(const std::vector<FlightRank>& ranks,
                   const std::vector<int>& culprits,
                   const FlightOp* under_way = nullptr) {
  std::map<std::string, std::vector<int>> in;
  for (const FlightRank& rank : ranks) {
    if (std::count(culprits.begin(), culprits.end(), rank.rank) > 0) continue;
    const FlightOp* op = current(rank);
    if (op == nullptr) op = last_failed(rank);
    if (op != nullptr) in[op_in_group(*op)].push_back(rank.rank);
  }
  if (under_way != nullptr) in.erase(op_in_group(*under_way));
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

// What became of the rank that errors name, for this reason.
std::string fate(const FlightRank& rank, const std::string& reason,
                 const FirstGone& gone) {
  if (rank.stopped) return "is stopped";
  if (rank.ending != kFlightOpen) return "failed";
  if (rank.alive) return "did not answer";
  // One that aborted its groups said why; others found it gone.
  if (reason.find("abort") != std::string::npos) return "gave up";
  if (gone.rank == rank.rank && !gone.how.empty()) return gone.how;
  // Another one ended before, for this one's sake or in its own way.
  return gone.rank >= 0 ? "was lost" : "died without an error";
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
  return {{culprit},
          fmt::format("{} {} {}{} ({})", who, fate(*rank, reason, gone),
                      where(*rank), others(ranks, {culprit}), reason)};
}

Blame silent(const std::vector<FlightRank>& ranks, const std::vector<int>& who,
             const std::string& how) {
  const FlightRank& first = *find(ranks, who[0]);
  return {who, fmt::format("{} {}{} {}{}", rank_list(who), how,
                           who.size() == 1 ? "" : ", the first", where(first),
                           others(ranks, who))};
}

// The first that the launcher saw end, without an error that it recorded.
Blame ended_first(const std::vector<FlightRank>& ranks, const FlightRank& rank,
                  const std::string& how) {
  if (!how.starts_with("exited")) {
    return silent(ranks, {rank.rank},
                  how.empty() ? "died without an error" : how);
  }
  return {{rank.rank},
          fmt::format("rank {} {} {}{}; what it wrote may say why", rank.rank,
                      how, where(rank, true),
                      others(ranks, {rank.rank}, current(rank)))};
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

// Ranks that are in an operation, who has been there longest first.
std::vector<const FlightRank*> waiters(const std::vector<FlightRank>& ranks) {
  std::vector<const FlightRank*> in;
  for (const FlightRank& rank : ranks) {
    if (current(rank) != nullptr) in.push_back(&rank);
  }
  auto key = [](const FlightRank* rank) {
    return std::make_pair(current(*rank)->issued_ns, rank->rank);
  };
  std::sort(in.begin(), in.end(),
            [&](const FlightRank* a, const FlightRank* b) {
              return key(a) < key(b);
            });
  return in;
}

// The ranks that have not called what others wait in.
Late laggards(const std::vector<FlightRank>& ranks) {
  for (const FlightRank* waiter : waiters(ranks)) {
    const FlightRank& waiting = *waiter;
    const FlightOp* op = current(waiting);
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

// Of the ranks that are so, those that others wait for; if for none, all.
template <typename Is>
std::vector<int> missed(const std::vector<FlightRank>& ranks, Is is) {
  const std::vector<int> late = laggards(ranks).ranks;
  std::vector<int> all, awaited;
  for (const FlightRank& rank : ranks) {
    if (!is(rank)) continue;
    all.push_back(rank.rank);
    if (std::count(late.begin(), late.end(), rank.rank) > 0) {
      awaited.push_back(rank.rank);
    }
  }
  return awaited.empty() ? all : awaited;
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

std::string state_of(const FlightRank& rank) {
  if (rank.ending == kFlightClosed) return "closed in order";
  if (rank.ending == kFlightFailed) return "failed: " + rank.error;
  if (rank.stopped) return "stopped";
  return rank.alive ? "running" : "gone";
}

Blame whoever(const std::vector<FlightRank>& ranks, const FirstGone& gone) {
  int culprit = most_named(ranks);
  if (culprit >= 0) return named(ranks, culprit, gone);
  const FlightRank* first = find(ranks, gone.rank);
  if (first != nullptr && first->died()) {
    return ended_first(ranks, *first, gone.how);
  }
  const std::vector<int> dead =
      missed(ranks, [](const FlightRank& r) { return r.died(); });
  if (!dead.empty()) return silent(ranks, dead, "died without an error");
  const std::vector<int> stopped = missed(ranks, [](const FlightRank& r) {
    return r.stopped && r.ending == kFlightOpen;
  });
  if (stopped.empty()) return waited_for(ranks);
  return silent(ranks, stopped,
                stopped.size() == 1 ? "is stopped" : "are stopped");
}

}  // namespace

Blame blame(const std::vector<FlightRank>& ranks, const FirstGone& gone) {
  Blame result = whoever(ranks, gone);
  for (const FlightRank* rank : waiters(ranks)) {
    const auto& who = result.culprits;
    if (std::count(who.begin(), who.end(), rank->rank) > 0) continue;
    result.since_ns = current(*rank)->issued_ns;
    break;
  }
  return result;
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
                 "aliquot blame: no rank-N.flight in {}: it is where "
                 "ALIQUOT_FLIGHT_DIR or --flight of aliquot run told ranks to "
                 "record, else ${{TMPDIR:-/tmp}}/aliquot-* while the job "
                 "runs\n",
                 *folder);
      *code = kUsage;
      return;
    }
    Blame result = blame(ranks, read_first_gone(*folder));
    fmt::print("{}\n", result.sentence);
    for (const FlightRank& rank : ranks) {
      if (*all) {
        fmt::print("rank {}: {}, {}\n", rank.rank, state_of(rank), where(rank));
      }
    }
    *code = result.culprits.empty() ? 1 : 0;
  });
}

}  // namespace aliquot::tools
