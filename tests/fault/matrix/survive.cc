#include "fault/matrix/survive.h"

#include <unistd.h>

#include <algorithm>

namespace aliquot::test {
namespace {

void check_agreed(Rank& rank, const Group& group, int generation) {
  int64_t mine = 0, none = 0;
  for (int32_t r : group.ranks()) mine |= int64_t{1} << r;
  auto& members = rank.shared(kMembers + generation);
  if (members.compare_exchange_strong(none, mine)) return;
  rank.check(none == mine, "survivors with different members");
}

}  // namespace

void note_time(Rank& rank, int64_t ns) {
  auto& worst = rank.shared(kWorstNs);
  int64_t seen = worst.load();
  while (seen < ns && !worst.compare_exchange_weak(seen, ns)) {
  }
}

void judge(Rank& rank, const Expect& e, Group* group, const Failure& f) {
  note_time(rank, f.ns);
  auto among = [](const auto& all, auto one) {
    return std::find(all.begin(), all.end(), one) != all.end();
  };
  std::string got = fmt::format("code {}, rank {}: {}", f.status.code(),
                                f.status.rank(), f.status.message());
  rank.check(among(e.codes, f.status.code()), "other error: " + got);
  rank.check(among(e.culprits, f.status.rank()), "other culprit: " + got);
  std::string one = fmt::format("rank {}", f.status.rank());
  std::string many = fmt::format("rank(s) {}", f.status.rank());
  std::string store = fmt::format("missing ranks {}", f.status.rank());
  rank.check(has(f.status.message(), one) || has(f.status.message(), many) ||
                 has(f.status.message(), store),
             "culprit not in the text: " + got);
  for (const std::string& word : e.words) {
    rank.check(has(f.status.message(), word),
               fmt::format("no \"{}\" in {}", word, got));
  }
  rank.check(f.ns < e.limit_ms * kMs,
             fmt::format("took {} ms: {}", f.ns / kMs, got));
  if (group == nullptr) return;
  Status later = group->issue(Coll{}, nullptr, nullptr);
  rank.check(
      later.code() == ALQ_GROUP_POISONED && later.rank() == f.status.rank(),
      "a later call: " + later.message());
}

std::vector<int32_t> others_than(const Run& run,
                                 const std::vector<int32_t>& out) {
  std::vector<int32_t> ranks;
  for (int32_t r = 0; r < run.size; ++r) {
    if (std::find(out.begin(), out.end(), r) == out.end()) ranks.push_back(r);
  }
  return ranks;
}

std::shared_ptr<Group> go_on(Rank& rank, const std::vector<int32_t>& members,
                             Exercise* exercise) {
  std::shared_ptr<Group> group = rank.group;
  for (int generation = 1; generation <= 3; ++generation) {
    auto next = group->shrink(in_ms(5000));
    rank.check_ok(next.status(), "shrink");
    if (!next.ok()) return nullptr;
    group = *next;
    check_agreed(rank, *group, generation);
    exercise->start_at(1000 * generation);
    Status status;
    for (int i = 0; i < 3 && status.ok(); ++i) status = exercise->call(*group);
    if (!status.ok()) continue;
    for (int32_t r : group->ranks()) {
      rank.check(std::find(members.begin(), members.end(), r) != members.end(),
                 fmt::format("rank {} is in the new group", r));
    }
    return group;
  }
  rank.check(false, "no generation works");
  return nullptr;
}

void wait_for(Rank& rank, int counter, int64_t value) {
  int64_t end = now_ns() + 10'000 * kMs;
  while (rank.shared(counter).load() < value && now_ns() < end) usleep(300);
  rank.check(rank.shared(counter).load() >= value, "others never came");
}

}  // namespace aliquot::test
