#include "base/fault.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

namespace aliquot {

const std::vector<std::string_view> kFaultPoints = {
    "bootstrap.gather",  // before a rank hands in its bytes
    "group.attach",      // before a rank maps its group's control block
    "group.split",       // on entry of split
    "group.close",       // on entry of close
    "group.report",      // in writing down the first failure of a group
    "shrink.join",       // before a rank says that it takes part in a shrink
    "shrink.make",       // it is decided who goes on
    "shrink.commit",     // the new control block is mapped
    "coll.issue",        // before an operation is posted
    "coll.posted",       // posted, no data moved yet
    "coll.data",         // before each block of data
    "coll.done",         // data moved, before it says so
    "engine.begin",      // on entry of unit_begin
    "engine.reduce",     // before a reduction is issued
    "engine.step",       // on entry of step
    "engine.updated",    // own part of an update done, others' maybe not
    "engine.join",       // before a rank in join follows a call
    "engine.comm",       // skip: no data moves between ranks, no rank waits
};

const std::vector<std::string_view> kSkipPoints = {"engine.comm"};

namespace {

bool parse_int(std::string_view text, int64_t* out) {
  auto [end, ec] =
      std::from_chars(text.data(), text.data() + text.size(), *out);
  return ec == std::errc() && end == text.data() + text.size();
}

bool contains(const std::vector<std::string_view>& all, std::string_view one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

bool known_action(std::string_view point, std::string_view action) {
  if (action == "skip") return contains(kSkipPoints, point);
  if (contains(kSkipPoints, point)) return false;
  int64_t ms = 0;
  if (action.starts_with("delay_ms/")) {
    return parse_int(action.substr(9), &ms) && ms >= 0 && ms <= 600'000;
  }
  return action == "kill" || action == "stop" || action == "exit" ||
         action == "error";
}

void sleep_ms(int64_t ms) {
  timespec t{ms / 1000, ms % 1000 * 1'000'000};
  while (nanosleep(&t, &t) != 0) {
  }
}

}  // namespace

Status Faults::arm(std::string_view spec) {
  std::vector<Fault> faults;
  while (!spec.empty()) {
    size_t comma = std::min(spec.find(','), spec.size());
    std::string_view item = spec.substr(0, comma);
    spec.remove_prefix(std::min(comma + 1, spec.size()));

    size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      return make_error(ALQ_INVALID_ARGUMENT,
                        "fault \"{}\" has no action; write "
                        "point[:hit][@rank]=kill|stop|exit|error|delay_ms/N",
                        item);
    }
    Fault fault;
    fault.action = item.substr(equals + 1);
    std::string_view where = item.substr(0, equals);
    int64_t rank = rank_;
    if (size_t at = where.find('@'); at != std::string_view::npos) {
      if (!parse_int(where.substr(at + 1), &rank)) {
        return make_error(ALQ_INVALID_ARGUMENT, "fault \"{}\": bad rank", item);
      }
      where = where.substr(0, at);
    }
    if (size_t colon = where.find(':'); colon != std::string_view::npos) {
      if (!parse_int(where.substr(colon + 1), &fault.hits_left) ||
          fault.hits_left < 1) {
        return make_error(ALQ_INVALID_ARGUMENT,
                          "fault \"{}\": hits count from 1", item);
      }
      where = where.substr(0, colon);
    }
    if (!contains(kFaultPoints, where)) {
      return make_error(ALQ_NOT_FOUND,
                        "fault point \"{}\" does not exist; points are: {}",
                        where, fmt::join(kFaultPoints, " "));
    }
    if (!known_action(where, fault.action)) {
      return make_error(ALQ_INVALID_ARGUMENT,
                        "fault \"{}\": action must be kill, stop, exit, error "
                        "or delay_ms/N; skip at {} alone",
                        item, fmt::join(kSkipPoints, " "));
    }
    fault.point = where;
    if (rank == rank_) faults.push_back(std::move(fault));
  }
  std::lock_guard lock(mutex_);
  faults_ = std::move(faults);
  armed_.store(!faults_.empty(), std::memory_order_relaxed);
  return {};
}

bool Faults::skip_armed(std::string_view name) {
  std::lock_guard lock(mutex_);
  return std::any_of(faults_.begin(), faults_.end(), [&](const Fault& fault) {
    return fault.point == name && fault.action == "skip";
  });
}

Status Faults::hit(std::string_view name) {
  std::string action;
  {
    std::lock_guard lock(mutex_);
    for (Fault& fault : faults_) {
      if (fault.point == name && fault.hits_left > 0 &&
          --fault.hits_left == 0) {
        action = fault.action;
      }
    }
  }
  if (action == "kill") raise(SIGKILL);
  if (action == "stop") raise(SIGSTOP);
  if (action == "exit") _exit(7);
  if (action == "error") {
    return make_error(ALQ_INTERNAL,
                      "fault point {} on rank {} returned an error", name,
                      rank_);
  }
  if (action.starts_with("delay_ms/")) {
    int64_t ms = 0;
    parse_int(std::string_view(action).substr(9), &ms);
    sleep_ms(ms);
  }
  return {};
}

}  // namespace aliquot
