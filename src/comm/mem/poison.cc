#include "comm/mem/poison.h"

#include <sched.h>

#include <cstring>

#include "base/text.h"
#include "comm/mem/call.h"
#include "comm/mem/shrink.h"

namespace aliquot::mem {

void poison(const GroupCore& core, alq_status code, int32_t culprit,
            const std::string& text) {
  Poison& record = core.control.poison();
  uint32_t none = 0;
  if (record.state.compare_exchange_strong(none, 1)) {
    record.code = code;
    record.culprit = culprit;
    copy_text(record.text, text);
    // Recorded before anyone knows: a launcher may end this process as soon as
    // the others have failed.  Who aborts records what it does next itself.
    if (code != ALQ_ABORTED) {
      record_failure(core, Status(code, text).with_rank(culprit));
    }
    record.state.store(2);
  }
  core.ring_peers();
  core.world->runner->ring_self();
}

Status poison_cause(const GroupCore& core) {
  Poison& record = core.control.poison();
  uint32_t state = record.state.load();
  // Being written: a few instructions, unless the writer died in them.
  for (int i = 0; state == 1 && i < 1000; ++i) {
    sched_yield();
    state = record.state.load();
  }
  if (state == 0) return {};
  if (state == 1) {
    return make_error(ALQ_PEER_FAILED,
                      "group \"{}\": a rank died while reporting a failure",
                      core.name);
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

Status poison_report(GroupCore& core) {
  Status cause = poison_cause(core);
  if (cause.ok()) return cause;
  record_failure(core, cause);
  if (!core.reported.exchange(true)) return cause;
  return make_error(ALQ_GROUP_POISONED,
                    "group \"{}\" failed earlier and can not be used: {}",
                    core.name, cause.message())
      .with_rank(cause.rank());
}

}  // namespace aliquot::mem
