#include "fault/matrix/scenes.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/process.h"
#include "fault/matrix/survive.h"

namespace aliquot::test {
namespace {

int64_t stop_limit_ms(const Run& run) {
  return run.scale == 1 ? 6000 : kPromptMs;
}

bool is_stopped(const Run& run, int32_t rank) {
  if (run.fault == Fault::kStop) return rank == run.victim;
  return run.place == "stop" && rank == 1;
}

// Woken up after the others went on without it: nothing works, and says so.
void wake_up_late(Rank& rank, Exercise* exercise) {
  Failure f = until_failure([&](int) { return exercise->call(*rank.group); });
  rank.check(!f.status.ok() && has(f.status.message(), "was removed"),
             "not fenced: " + f.status.message());
  Status later = rank.group->issue(Coll{}, nullptr, nullptr);
  rank.check(has(later.message(), "was removed"), "not fenced later");
  rank.check(!rank.group->shrink(in_ms(200)).ok(), "fenced, but shrinks");
  rank.shared(kVictimsDone).fetch_add(1);
}

void wake_the_stopped(Rank& rank, const Run& run) {
  for (int32_t q = 0; q < run.size; ++q) {
    if (is_stopped(run, q)) {
      kill(static_cast<pid_t>(rank.shared(kPids + q).load()), SIGCONT);
    }
  }
}

// Kill, stop, exit, leave, one or two: the others learn who, and go on.
void end_of_ranks(Rank& rank, const Run& run) {
  if (rank.group == nullptr) return rank.check(false, rank.joined.message());
  Exercise exercise(rank, run.op, run.shape);
  auto call = [&](int) { return exercise.call(*rank.group); };
  std::vector<int32_t> victims = victims_of(run);
  if (is_victim(run, rank.rank)) {
    if (is_stopped(run, rank.rank)) return wake_up_late(rank, &exercise);
    if (run.place == "leave") {
      for (int i = 0; i < 2; ++i) {
        Status status = call(i);
        // Of two that leave, the first may end the other's last call.
        if (victims.size() == 1) rank.check_ok(status, "before leaving");
      }
      return;
    }
    if (!until_failure(call).status.ok()) {
      (void)rank.group->shrink(in_ms(5000));  // ends in it
    }
    return;
  }
  Expect e{victims};
  bool stops = run.fault == Fault::kStop;
  if (stops) e.words = {"has been stopped", "last seen"};
  if (stops || run.place == "stop") e.limit_ms = stop_limit_ms(run);
  // The other half of a message may have reported it first.
  if (run.op == Op::kMessages) e.codes.push_back(ALQ_GROUP_POISONED);
  judge(rank, e, rank.group.get(), until_failure(call));
  auto survivors = others_than(run, victims);
  auto group = go_on(rank, survivors, &exercise);
  rank.shared(kSurvivorsDone).fetch_add(1);
  if (!stops && run.place != "stop") return;
  if (rank.rank == 0) {
    wait_for(rank, kSurvivorsDone, static_cast<int64_t>(survivors.size()));
    wake_the_stopped(rank, run);
  }
  wait_for(rank, kVictimsDone, 1);
  for (int i = 0; i < 3 && group != nullptr; ++i) {
    rank.check_ok(exercise.call(*group), "beside a removed rank");
  }
}

// Stopped for a moment: all goes on, and all is right.
void pause(Rank& rank, const Run& run) {
  Exercise exercise(rank, run.op, run.shape);
  std::thread waker;
  if (rank.rank == 0) {
    waker = std::thread([&] {
      auto& pid = rank.shared(kPids + run.victim);
      int64_t end = now_ns() + 5000 * kMs;
      auto stopped = [&] {
        auto id = static_cast<int32_t>(pid.load());
        return id != 0 && process_info(id).state == 'T';
      };
      while (!stopped() && now_ns() < end) usleep(500);
      usleep(static_cast<useconds_t>(run.scale == 1 ? 1'000'000 : 20'000));
      kill(static_cast<pid_t>(pid.load()), SIGCONT);
    });
  }
  int64_t start = now_ns();
  for (int i = 0; i < 8; ++i) {
    rank.check_ok(exercise.call(*rank.group), "a call");
  }
  note_time(rank, now_ns() - start);
  if (waker.joinable()) waker.join();
}

void late(Rank& rank, const Run& run) {
  Exercise exercise(rank, run.op, run.shape);
  for (int i = 0; i < 2; ++i) rank.check_ok(exercise.call(*rank.group), "good");
  if (rank.rank == run.victim) {
    wait_for(rank, kSurvivorsDone, run.size - 1);
    rank.check(!exercise.call(*rank.group).ok(), "late, but it works");
    return;
  }
  int64_t ms = run.scale == 1 ? 2000 : kShortMs;
  rank.group->set_timeout_ns(ms * kMs);
  Expect e{{run.victim}, {ALQ_DEADLINE_EXCEEDED}};
  e.words = {"last seen"};
  if (run.op != Op::kMessages) e.words.push_back(op_name(run.op));
  if (run.op != Op::kMessages) e.words.push_back("\"unit 7\"");
  e.limit_ms = ms + kPromptMs;
  if (run.op == Op::kMessages) e.codes.push_back(ALQ_GROUP_POISONED);
  judge(rank, e, rank.group.get(),
        until_failure([&](int) { return exercise.call(*rank.group); }));
  rank.shared(kSurvivorsDone).fetch_add(1);
}

// An error in the victim's call, which it answers with an abort.
void error_in_call(Rank& rank, const Run& run) {
  Exercise exercise(rank, run.op, run.shape);
  Failure f = until_failure([&](int) { return exercise.call(*rank.group); });
  if (rank.rank == run.victim) {
    rank.check(!f.status.ok(), "the fault had no effect");
    rank.group->abort(make_error(ALQ_ABORTED, "an error in the host"));
  } else {
    Expect e{{run.victim}, {ALQ_INTERNAL, ALQ_ABORTED}};
    if (run.op == Op::kMessages) e.codes.push_back(ALQ_GROUP_POISONED);
    judge(rank, e, rank.group.get(), f);
  }
  go_on(rank, others_than(run, {}), &exercise);
}

void init(Rank& rank, const Run& run) {
  if (rank.rank == run.victim) {
    // Waits for the others as threads: leaving is another failure.
    rank.check(!rank.joined.ok(), "the fault had no effect");
    return;
  }
  rank.check(rank.group == nullptr, "the join can not succeed");
  Expect e{{run.victim},
           {ALQ_PEER_FAILED, ALQ_DEADLINE_EXCEEDED, ALQ_UNAVAILABLE}};
  e.limit_ms = 4000;
  judge(rank, e, nullptr, {rank.joined, rank.shared(kWorstNs).load()});
  rank.shared(kSurvivorsDone).fetch_add(1);
  wait_for(rank, kSurvivorsDone, run.size - 1);
}

void all_meet(Rank& rank) {
  rank.shared(kMet).fetch_add(1);
  wait_for(rank, kMet, rank.size);
}

void split(Rank& rank, const Run& run) {
  Exercise exercise(rank, run.op, run.shape);
  for (int i = 0; i < 2; ++i) {
    rank.check_ok(exercise.call(*rank.group), "before the split");
  }
  // Messages of others may still be on their way when a rank is through.
  all_meet(rank);
  bool refused = run.place == "group.attach:2=error";
  if (rank.rank == run.victim && run.place == "leave") return;
  int64_t start = now_ns();
  Status status = rank.group->split(0, 0, "part", in_ms(5000)).status();
  Failure f{status, now_ns() - start};
  Expect e{{run.victim}};
  if (!refused) return judge(rank, e, rank.group.get(), f);
  e.codes = {ALQ_INTERNAL};
  judge(rank, e, nullptr, f);
  rank.check_ok(exercise.call(*rank.group), "the parent is well");
}

void close(Rank& rank, const Run& run) {
  Exercise exercise(rank, run.op, run.shape);
  for (int i = 0; i < 2; ++i) {
    rank.check_ok(exercise.call(*rank.group), "before the close");
  }
  all_meet(rank);
  if (rank.rank == run.victim && run.place == "leave") return;
  int64_t start = now_ns();
  Status status = rank.group->close(in_ms(5000));
  judge(rank, {{run.victim}}, rank.group.get(), {status, now_ns() - start});
}

// The victim's third call differs.
void mismatch(Rank& rank, const Run& run, Odd odd) {
  Exercise exercise(rank, run.op, run.shape);
  const bool messages = run.op == Op::kMessages;
  Expect e{{run.victim}, {ALQ_RANK_MISMATCH}};
  if (messages) {
    // Of two that differ each may be the odd one.
    e.culprits.push_back((run.victim + run.size - 1) % run.size);
    e.codes.push_back(ALQ_GROUP_POISONED);
  } else if (run.op != Op::kAllToAllV) {
    e.words = {"\"unit 7\"", "rank 0 called"};
  }
  if (messages && odd == Odd::kOp) {
    // Messages and collectives do not meet: whoever waits longest speaks.
    rank.group->set_timeout_ns((run.scale == 1 ? 2000 : kShortMs) * kMs);
    e.culprits = others_than(run, {});
    e.codes = {ALQ_DEADLINE_EXCEEDED, ALQ_GROUP_POISONED};
    e.words = {fmt::format("rank {}", run.victim)};
  }
  Failure f = until_failure([&](int i) {
    bool differs = i == 2 && rank.rank == run.victim;
    return exercise.call(*rank.group, differs ? odd : Odd::kNone);
  });
  judge(rank, e, rank.group.get(), f);
  go_on(rank, others_than(run, {}), &exercise);
}

// Two groups, and one rank calls them the other way round.
void order(Rank& rank, const Run& run) {
  Exercise exercise(rank, run.op, run.shape);
  auto a = rank.group->split(0, 0, "a", in_ms(5000));
  auto b = rank.group->split(0, 0, "b", in_ms(5000));
  rank.check_ok(a.status(), "split");
  rank.check_ok(b.status(), "split");
  if (!a.ok() || !b.ok()) return;
  int64_t ms = run.scale == 1 ? 2000 : kShortMs;
  for (auto* group : {&*a, &*b}) (*group)->set_timeout_ns(ms * kMs);
  bool odd = rank.rank == run.victim;
  Group &first = odd ? **b : **a, &second = odd ? **a : **b;
  int32_t distance = std::abs(rank.rank - run.victim);
  bool apart = run.op == Op::kMessages && distance == 2;
  // What the victim waits in is known to the others if it comes first, and what
  // they wait in to it if they come soon.
  if (odd) rank.shared(kMet).fetch_add(1);
  wait_for(rank, kMet, 1);
  if (!odd) std::this_thread::sleep_for(std::chrono::milliseconds(ms / 4));
  int64_t start = now_ns();
  Status status = exercise.call(first);
  Failure f{status, now_ns() - start};
  // A message between others does not wait for the victim.
  if (apart) {
    rank.shared(kSurvivorsDone).fetch_add(1);
    return wait_for(rank, kSurvivorsDone, run.size);
  }
  Expect e{
      odd ? others_than(run, {run.victim}) : std::vector<int32_t>{run.victim},
      {ALQ_DEADLINE_EXCEEDED}};
  e.words = {"last seen"};
  // Of a message the other end may have ended a moment ago, and wait again.
  if (run.op != Op::kMessages) {
    e.words.push_back(fmt::format("of group \"{}\"", second.name()));
  }
  e.limit_ms = ms + kPromptMs;
  if (run.op == Op::kMessages) e.codes.push_back(ALQ_GROUP_POISONED);
  judge(rank, e, &first, f);
  rank.shared(kSurvivorsDone).fetch_add(1);
  wait_for(rank, kSurvivorsDone, run.size);
}

// Rank 0 may not make files of more than 64 KiB, of which memory is one.
class LittleMemory {
 public:
  explicit LittleMemory(bool on) : on_(on) {
    if (!on_) return;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old_);
    rlimit little{65536, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &little);
  }
  ~LittleMemory() {
    if (on_) setrlimit(RLIMIT_FSIZE, &old_);
  }
  LittleMemory(const LittleMemory&) = delete;
  LittleMemory& operator=(const LittleMemory&) = delete;

 private:
  const bool on_;
  rlimit old_{};
};

void full_memory(Rank& rank, const Run& run) {
  Exercise exercise(rank, run.op, run.shape);
  rank.check_ok(exercise.call(*rank.group), "before");
  auto make = [&] {
    return run.place == "split"
               ? rank.group->split(0, 0, "part", in_ms(5000)).status()
               : rank.group->allocate_common(1 << 20, "part", in_ms(5000))
                     .status();
  };
  Failure f;
  {
    LittleMemory little(rank.rank == 0);
    int64_t start = now_ns();
    f.status = make();
    f.ns = now_ns() - start;
    if (rank.rank == 0) {
      Status own = rank.device->allocate(1 << 20, "own").status();
      rank.check(own.code() == ALQ_RESOURCE_EXHAUSTED, "own: " + own.message());
    }
  }
  judge(rank, {{0}, {ALQ_RESOURCE_EXHAUSTED}, {"bytes asked"}}, nullptr, f);
  rank.check_ok(exercise.call(*rank.group), "the group is well");
  rank.check_ok(make(), "with memory again");
  rank.check_ok(exercise.call(*rank.group), "after");
}

}  // namespace

std::vector<int32_t> victims_of(const Run& run) {
  if (run.fault == Fault::kDouble) return {1, 2};
  return {run.victim};
}

bool is_victim(const Run& run, int32_t rank) {
  auto all = victims_of(run);
  return std::find(all.begin(), all.end(), rank) != all.end();
}

RanksOptions options_of(const Run& run) {
  RanksOptions o = options(run.size, run.kind);
  o.timeout_ms = 20'000;
  o.time_scale = run.scale;
  const std::string at = run.place + ":3";
  switch (run.fault) {
    case Fault::kKill:
    case Fault::kStoreHost:
      o.faults = fmt::format("{}@{}=kill", at, run.victim);
      // Of an error of its own, which the others never read.
      if (run.place == "group.report") {
        o.faults = fmt::format("coll.data:3@{0}=error,group.report@{0}=kill",
                               run.victim);
      }
      break;
    case Fault::kStop:
    case Fault::kPause:
      o.faults = fmt::format("{}@{}=stop", at, run.victim);
      // Continued after 20 ms, which is not too long.
      if (run.fault == Fault::kPause) o.time_scale = 1;
      break;
    case Fault::kExit:
      if (run.place != "leave") {
        o.faults = fmt::format("{}@{}=exit", at, run.victim);
      }
      break;
    case Fault::kError:
      o.faults = fmt::format("{}@{}=error", at, run.victim);
      break;
    case Fault::kInit:
    case Fault::kSplit:
    case Fault::kClose:
      if (size_t equals = run.place.find('='); equals != std::string::npos) {
        std::string point = run.place.substr(0, equals);
        // Any fault tells the runner that the join may fail.
        o.faults = "coll.done:1000=error";
        if (point != "store") {
          o.faults = fmt::format("{}@{}{}", point, run.victim,
                                 run.place.substr(equals));
        } else {
          o.killed_in_store = run.victim;
        }
      }
      if (run.fault == Fault::kInit) o.deadline_ms = 700;
      break;
    case Fault::kDouble:
      if (run.place == "stop") {
        o.faults = "coll.posted:3@2=kill,coll.posted:3@1=stop";
      } else if (run.place.starts_with("shrink")) {
        o.faults = fmt::format("coll.data:3@2=kill,{}@1=kill", run.place);
      } else if (run.place != "leave") {
        o.faults = fmt::format("{0}@2=kill,{0}@1=kill", at);
      }
      break;
    default: break;
  }
  return o;
}

void play(Rank& rank, const Run& run) {
  rank.shared(kPids + rank.rank).store(getpid());
  if (run.fault == Fault::kInit) return init(rank, run);
  if (rank.group == nullptr) {
    return rank.check(false, "join: " + rank.joined.message());
  }
  switch (run.fault) {
    case Fault::kPause: return pause(rank, run);
    case Fault::kLate: return late(rank, run);
    case Fault::kError: return error_in_call(rank, run);
    case Fault::kSplit: return split(rank, run);
    case Fault::kClose: return close(rank, run);
    case Fault::kOtherOp: return mismatch(rank, run, Odd::kOp);
    case Fault::kOtherCount: return mismatch(rank, run, Odd::kCount);
    case Fault::kOtherDtype: return mismatch(rank, run, Odd::kDtype);
    case Fault::kOtherRoot: return mismatch(rank, run, Odd::kRoot);
    case Fault::kOtherOrder: return order(rank, run);
    case Fault::kFullMemory: return full_memory(rank, run);
    default: return end_of_ranks(rank, run);
  }
}

}  // namespace aliquot::test
