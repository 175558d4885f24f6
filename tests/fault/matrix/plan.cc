#include "fault/matrix/plan.h"

namespace aliquot::test {
namespace {

using Places = std::vector<std::string>;
using Shapes = std::vector<Shape>;

const Places kPoints = {"coll.issue", "coll.posted", "coll.data", "coll.done"};
const Places kDeaths = {"coll.issue", "coll.posted", "coll.data", "coll.done",
                        "group.report"};

// The placements of a fault kind; none where it does not exist.
Places places_of(Fault fault, RankKind kind, int32_t size, Op op) {
  const bool threads = kind == RankKind::kThreads;
  const bool barrier = op == Op::kBarrier;
  switch (fault) {
    case Fault::kKill: return threads ? Places{} : kDeaths;
    case Fault::kStoreHost:
      return threads ? Places{} : Places{"coll.issue", "coll.data"};
    case Fault::kStop:
    case Fault::kPause:
      return threads ? Places{} : Places{"coll.posted", "coll.data"};
    case Fault::kExit:
      return threads ? Places{"leave"}
                     : Places{"leave", "coll.posted", "coll.data"};
    case Fault::kLate: return {"late"};
    case Fault::kError: return kPoints;
    case Fault::kInit:
      return threads ? Places{"group.attach=error"}
                     : Places{"bootstrap.gather=kill", "store=kill",
                              "group.attach=kill"};
    case Fault::kSplit:
      return threads ? Places{"group.attach:2=error", "leave"}
                     : Places{"group.split=kill", "group.attach:2=kill"};
    case Fault::kClose:
      return threads ? Places{"leave"} : Places{"group.close=kill"};
    case Fault::kDouble:
      if (size < 4) return {};
      if (threads) return {"leave"};
      // Messages do not all reach the same place before one is missed.
      if (op == Op::kMessages) {
        return {"coll.data", "shrink.join", "shrink.make", "shrink.commit"};
      }
      return {"coll.posted", "coll.data",     "shrink.join",
              "shrink.make", "shrink.commit", "stop"};
    case Fault::kOtherOp: return {"op"};
    case Fault::kOtherCount: return barrier ? Places{} : Places{"count"};
    case Fault::kOtherDtype: return barrier ? Places{} : Places{"dtype"};
    case Fault::kOtherRoot:
      return is_rooted(kind_of(op)) ? Places{"root"} : Places{};
    case Fault::kOtherOrder: return {"order"};
    default: return {"split", "common"};
  }
}

Shapes shapes_of(Fault fault, Op op) {
  if (op == Op::kBarrier) return {Shape::kInline};
  switch (fault) {
    case Fault::kKill:
    case Fault::kStop:
      return {Shape::kInline, Shape::kShared, Shape::kPrivate, Shape::kLarge};
    case Fault::kLate:
    case Fault::kSplit:
    case Fault::kClose:
    case Fault::kFullMemory:
    case Fault::kOtherOrder: return {Shape::kInline};
    case Fault::kOtherOp:
    case Fault::kOtherCount:
    case Fault::kOtherDtype:
    case Fault::kOtherRoot: return {Shape::kInline, Shape::kShared};
    default: return {Shape::kInline, Shape::kPrivate};
  }
}

void add_runs(Fault fault, RankKind kind, int32_t size, Op op,
              std::vector<Run>* runs) {
  for (const std::string& place : places_of(fault, kind, size, op)) {
    for (Shape shape : shapes_of(fault, op)) {
      Run run{fault, kind, size, op, shape, place};
      run.victim = size == 2 ? 1 : 2;
      if (fault == Fault::kStoreHost || fault == Fault::kFullMemory) {
        run.victim = 0;
      }
      runs->push_back(run);
    }
  }
}

void add_init_runs(RankKind kind, int32_t size, std::vector<Run>* runs) {
  for (const std::string& place :
       places_of(Fault::kInit, kind, size, Op::kBarrier)) {
    for (int32_t victim : {0, size - 1}) {
      runs->push_back({Fault::kInit, kind, size, Op::kBarrier, Shape::kInline,
                       place, victim});
    }
  }
}

}  // namespace

const char* fault_name(Fault fault) {
  constexpr const char* kNames[] = {
      "kill",
      "kill of the store's host",
      "stop, continued too late",
      "stop, continued in time",
      "clean exit, or leaving",
      "does not come",
      "error in the call",
      "end during init",
      "end during split",
      "end during close",
      "double failure",
      "other operation",
      "other count",
      "other dtype",
      "other root",
      "other order of groups",
      "full shared memory",
  };
  return kNames[static_cast<int>(fault)];
}

std::string Run::text() const {
  return fmt::format("{} [{}] of rank {} in {} {}, {} {}", fault_name(fault),
                     place, victim, shape_name(shape), op_name(op), size,
                     kind_name(kind));
}

std::vector<Run> all_runs() {
  std::vector<Run> runs;
  for (int f = 0; f < kFaults; ++f) {
    auto fault = static_cast<Fault>(f);
    for (RankKind kind : kinds()) {
      for (int32_t size : {2, 4}) {
        if (before_operations(fault)) {
          add_init_runs(kind, size, &runs);
          continue;
        }
        for (int op = 0; op < kOps; ++op) {
          add_runs(fault, kind, size, static_cast<Op>(op), &runs);
        }
      }
    }
  }
  return runs;
}

std::vector<Run> default_runs() {
  std::vector<Run> runs;
  auto add = [&](Fault fault, std::string place, int32_t victim) {
    Run run{fault,           RankKind::kProcesses, 4,      Op::kAllReduce,
            Shape::kPrivate, std::move(place),     victim, 1.0};
    runs.push_back(run);
  };
  add(Fault::kKill, "coll.data", 2);
  add(Fault::kStoreHost, "coll.data", 0);
  add(Fault::kStop, "coll.data", 2);
  add(Fault::kPause, "coll.data", 2);
  add(Fault::kExit, "coll.data", 2);
  add(Fault::kLate, "late", 2);
  add(Fault::kError, "coll.data", 2);
  add(Fault::kInit, "store=kill", 3);
  add(Fault::kSplit, "group.split=kill", 2);
  add(Fault::kClose, "group.close=kill", 2);
  add(Fault::kDouble, "coll.data", 2);
  add(Fault::kOtherOp, "op", 2);
  add(Fault::kOtherCount, "count", 2);
  add(Fault::kOtherDtype, "dtype", 2);
  add(Fault::kOtherRoot, "root", 2);
  runs.back().op = Op::kReduce;
  add(Fault::kOtherOrder, "order", 2);
  add(Fault::kFullMemory, "split", 0);
  return runs;
}

}  // namespace aliquot::test
