#include "comm/mem/whereabouts.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "comm/mem/call.h"

namespace aliquot::mem {
namespace {

constexpr int64_t kFreshNs = 1'000'000'000;
constexpr int kTries = 1000;
constexpr size_t kText = Whereabouts::kWords * sizeof(uint64_t);

// Text of a rank; a change of it is waited for, unless its writer is no more.
std::string read_where(const Whereabouts& from) {
  for (int i = 0; i < kTries; ++i) {
    uint64_t version = from.version.load();
    uint64_t words[Whereabouts::kWords];
    for (int w = 0; w < Whereabouts::kWords; ++w)
      words[w] = from.text[w].load();
    if (version % 2 != 0 || from.version.load() != version) {
      sched_yield();
      continue;
    }
    char text[kText + 1];
    std::memcpy(text, words, kText);
    text[kText] = '\0';
    return text;
  }
  return "";
}

}  // namespace

void say_where(const GroupCore& core, const std::string& what) {
  Whereabouts& to = core.world->control.member(core.world->rank).now;
  uint64_t words[Whereabouts::kWords] = {};
  fitting(what, kText - 1).copy(reinterpret_cast<char*>(words), kText - 1);
  uint64_t version = to.version.load();
  // Another thread of this rank is at it: either text is true.
  if (version % 2 != 0 ||
      !to.version.compare_exchange_strong(version, version + 1)) {
    return;
  }
  for (int i = 0; i < Whereabouts::kWords; ++i) to.text[i].store(words[i]);
  to.version.store(version + 2);
}

int32_t last_in_line(const GroupCore& core, int32_t world_rank) {
  uint64_t passed = uint64_t{1} << core.world->rank;
  int32_t at = world_rank;
  for (;;) {
    if ((passed >> at & 1) != 0) return world_rank;
    passed |= uint64_t{1} << at;
    const Seen& seen = core.world->control.member(at).seen;
    int32_t next = seen.awaits.load() - 1;
    // Who waits looks up now and then; older news may be over.
    if (coarse_ns() - seen.at.load() > kFreshNs) return at;
    if (next < 0 || next >= core.world->size) return at;
    at = next;
  }
}

std::string late_text(const GroupCore& core, int32_t world_rank) {
  std::string text =
      fmt::format(" (rank {}: {}", world_rank, last_seen(core, world_rank));
  int32_t last = last_in_line(core, world_rank);
  if (last != world_rank) {
    text += fmt::format("; the last it waits for is rank {}: {}", last,
                        last_seen(core, last));
  }
  return text + ")";
}

std::string last_seen(const GroupCore& core, int32_t world_rank) {
  const Member& member = core.world->control.member(world_rank);
  int64_t at = member.seen.at.load();
  if (at == 0) return "it was never seen in an operation";
  std::string text = fmt::format(
      "last seen {} ms ago", std::max<int64_t>(0, now_ns() - at) / 1'000'000);
  std::string where = read_where(member.now);
  return where.empty() ? text : text + ", " + where;
}

std::string last_call(const GroupCore& core, int32_t q) {
  const Slot *even = &core.control.slot(q, 0), *odd = &core.control.slot(q, 1);
  const Slot& slot = even->seq.load() > odd->seq.load() ? *even : *odd;
  uint64_t number = slot.seq.load();
  if (number == 0) return "";
  const Call call = slot.call;
  char label[sizeof slot.label];
  std::memcpy(label, slot.label, sizeof label);
  label[sizeof label - 1] = '\0';
  // Continued meanwhile, it may have gone on.
  if (slot.seq.load() != number) return "";
  return fmt::format(", in operation {} ({}{})", number, call_text(call),
                     label_text(label));
}

void set_label(Slot& slot, const char* label) {
  // Names of one kind differ at their ends.
  const std::string_view text = fitting_end(label, sizeof slot.label - 1);
  const size_t length = strnlen(slot.label, sizeof slot.label);
  if (text != std::string_view(slot.label, length)) copy_text(slot.label, text);
}

}  // namespace aliquot::mem
