#include "comm/mem/whereabouts.h"

#include <algorithm>
#include <cstring>

#include "comm/mem/call.h"

namespace aliquot::mem {
namespace {

constexpr size_t kText = Whereabouts::kWords * sizeof(uint64_t);

// Text of a rank, or "" while it changes.
std::string read_where(const Whereabouts& from) {
  uint64_t version = from.version.load();
  uint64_t words[Whereabouts::kWords];
  for (int i = 0; i < Whereabouts::kWords; ++i) words[i] = from.text[i].load();
  if (version % 2 != 0 || from.version.load() != version) return "";
  char text[kText + 1];
  std::memcpy(text, words, kText);
  text[kText] = '\0';
  return text;
}

}  // namespace

void say_where(const GroupCore& core, const std::string& what) {
  Whereabouts& to = core.world->control.member(core.world->rank).now;
  uint64_t words[Whereabouts::kWords] = {};
  what.copy(reinterpret_cast<char*>(words), kText - 1);
  uint64_t version = to.version.load();
  // Another thread of this rank is at it: either text is true.
  if (version % 2 != 0 ||
      !to.version.compare_exchange_strong(version, version + 1)) {
    return;
  }
  for (int i = 0; i < Whereabouts::kWords; ++i) to.text[i].store(words[i]);
  to.version.store(version + 2);
}

std::string last_seen(const GroupCore& core, int32_t q) {
  const Member& member = core.world->control.member(core.world_rank(q));
  auto at = static_cast<int64_t>(member.seen.value.load());
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

std::string label_text(const char* label) {
  return *label == '\0' ? "" : fmt::format(", \"{}\"", label);
}

void set_label(Slot& slot, const char* label) {
  if (*label == '\0') {
    slot.label[0] = '\0';
    return;
  }
  size_t length = std::strlen(label), most = sizeof slot.label - 1;
  // Names of one kind differ at their ends.
  if (length > most) label += length - most;
  std::memcpy(slot.label, label, std::min(length, most) + 1);
}

}  // namespace aliquot::mem
