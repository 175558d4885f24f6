#include "comm/mem/poison.h"

#include <cstring>

#include "base/text.h"
#include "comm/mem/call.h"
#include "comm/mem/shrink.h"

namespace aliquot::mem {

void poison(const GroupCore& core, alq_status code, int32_t culprit,
            const std::string& text) {
  Poison& record = core.control.poison();
  const int32_t self = core.world_rank(core.rank);
  if (record.once.begin(self)) {
    (void)core.world->context->faults.point("group.report");
    record.code = code;
    record.culprit = culprit;
    copy_text(record.text, text);
    // Recorded before anyone knows: a launcher may end this process as soon as
    // the others have failed.  Who aborts records what it does next itself.
    if (code != ALQ_ABORTED) {
      record_failure(core, Status(code, text).with_rank(culprit));
    }
    record.once.end();
  }
  core.ring_peers();
  core.world->runner->ring_self();
}

void poison_by_leaving(const GroupCore& core, const std::string& what) {
  const int32_t rank = core.world_rank(core.rank);
  poison(core, ALQ_PEER_FAILED, rank,
         fmt::format("rank {} left (released its context) in {}", rank, what));
}

Status poison_cause(const GroupCore& core) {
  Poison& record = core.control.poison();
  const WrittenOnce::State state = record.once.state();
  if (state == WrittenOnce::State::kNot) return {};
  if (state == WrittenOnce::State::kUnfinished) {
    return record.once.unfinished(
        fmt::format("why group \"{}\" failed", core.name));
  }
  char text[sizeof record.text];
  std::memcpy(text, record.text, sizeof text);
  text[sizeof text - 1] = '\0';
  if (removed(core.control, core.rank)) {
    int32_t self = core.world_rank(core.rank);
    return make_error(ALQ_PEER_FAILED,
                      "rank {} was removed from group \"{}\": {} without it; "
                      "join a new world; the group had failed because {}",
                      self, core.name, survivors_text(core), text)
        .with_rank(self);
  }
  return Status(record.code, text).with_rank(record.culprit);
}

namespace {

void follow(const GroupCore& core, const Status& cause) {
  core.consequences.raise_words();
  for (const auto& follower : core.consequences.followers()) {
    poison(*follower, cause.code(), cause.rank(), cause.message());
    follow(*follower, cause);
  }
}

}  // namespace

Status fail_operation(GroupCore& core, const Status& error) {
  if (!error.ok()) {
    const int32_t rank =
        error.rank() >= 0 ? error.rank() : core.world_rank(core.rank);
    poison(core, error.code(), rank, error.message());
  }
  Status cause = poison_cause(core);
  record_failure(core, cause);
  core.reported.store(true);
  follow(core, cause);
  return cause;
}

Status poison_report(GroupCore& core) {
  Status cause = poison_cause(core);
  if (cause.ok()) return cause;
  record_failure(core, cause);
  follow(core, cause);
  if (!core.reported.exchange(true)) return cause;
  return make_error(ALQ_GROUP_POISONED,
                    "group \"{}\" failed earlier and can not be used: {}",
                    core.name, cause.message())
      .with_rank(cause.rank());
}

}  // namespace aliquot::mem
