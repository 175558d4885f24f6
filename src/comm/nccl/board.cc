#include "comm/nccl/board.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace aliquot::nccl {
namespace {

constexpr uint64_t kMix = 0x9e3779b97f4a7c15;

uint64_t roll(uint64_t before, const Call& call) {
  uint64_t h = (before ^ call.hash[0]) * kMix;
  h ^= h >> 32;
  return (h + call.hash[1]) * kMix;
}

}  // namespace

Board::Board(Group& control, const std::string& name,
             std::unique_ptr<Memory> memory)
    : memory_(std::move(memory)),
      name_(name),
      rank_(control.rank()),
      ranks_(control.ranks().begin(), control.ranks().end()),
      compared_(ranks_.size(), 0) {}

Result<std::unique_ptr<Board>> Board::create(Group& control,
                                             const std::string& name,
                                             Deadline deadline) {
  auto bytes = static_cast<int64_t>(
      sizeof(Record) + sizeof(Member) * static_cast<size_t>(control.size()));
  ALQ_ASSIGN(auto memory,
             control.allocate_common(bytes, "board of " + name, deadline));
  return std::unique_ptr<Board>(new Board(control, name, std::move(memory)));
}

Board::Member& Board::member(int32_t rank) const {
  return reinterpret_cast<Member*>(memory_->data() +
                                   sizeof(Record))[static_cast<size_t>(rank)];
}

bool Board::poison(const Status& cause) {
  Record& r = record();
  if (!r.once.begin(ranks_[static_cast<size_t>(rank_)])) return false;
  r.code = cause.code();
  r.culprit = cause.rank();
  r.domain = cause.domain();
  r.native = cause.native_code();
  copy_text(r.text, cause.message());
  r.once.end();
  return true;
}

bool Board::poisoned() const { return record().once.begun(); }

Status Board::cause() const {
  Record& r = record();
  const WrittenOnce::State state = r.once.state();
  if (state == WrittenOnce::State::kNot) return {};
  if (state == WrittenOnce::State::kUnfinished) {
    return r.once.unfinished(fmt::format("why group \"{}\" failed", name_));
  }
  return Status(r.code, std::string(r.text, strnlen(r.text, sizeof r.text)))
      .with_native(r.domain, r.native)
      .with_rank(r.culprit);
}

void Board::leave() { member(rank_).left.store(1); }
bool Board::left(int32_t rank) const { return member(rank).left.load() != 0; }

uint64_t Board::published(int32_t rank) const {
  return member(rank).published.load();
}

uint64_t Board::publish(Call call, std::span<const int64_t> counts,
                        const char* label) {
  seal_call(&call, counts);
  Print print;
  print.number = ++issued_;
  print.rolling = rolling_ = roll(rolling_, call);
  print.call = call;
  // The end of a long label tells more than its beginning.
  size_t length = std::strlen(label);
  size_t kept = std::min(length, sizeof print.label - 1);
  std::memcpy(print.label, label + length - kept, kept);

  uint64_t words[Entry::kWords];
  std::memcpy(words, &print, sizeof print);
  Member& me = member(rank_);
  Entry& entry = me.ring[print.number % kRing];
  entry.number.store(0);
  for (size_t i = 0; i < Entry::kWords; ++i) {
    entry.words[i].store(words[i], std::memory_order_relaxed);
  }
  entry.number.store(print.number);
  me.published.store(print.number);
  return print.number;
}

std::optional<Print> Board::read(int32_t rank, uint64_t number) const {
  const Entry& entry = member(rank).ring[number % kRing];
  if (entry.number.load() != number) return std::nullopt;
  uint64_t words[Entry::kWords];
  for (size_t i = 0; i < Entry::kWords; ++i) words[i] = entry.words[i].load();
  if (entry.number.load() != number) return std::nullopt;
  Print print;
  std::memcpy(static_cast<void*>(&print), words, sizeof print);
  print.label[sizeof print.label - 1] = '\0';
  return print;
}

std::optional<Mismatch> Board::compare() {
  const uint64_t mine = published(rank_);
  for (int32_t q = 0; q < static_cast<int32_t>(ranks_.size()); ++q) {
    if (q == rank_) continue;
    uint64_t& done = compared_[static_cast<size_t>(q)];
    const uint64_t to = std::min(mine, published(q));
    if (to <= done) continue;
    auto a = read(rank_, to), b = read(q, to);
    // Overwritten meanwhile: a later call tells as much.
    if (!a.has_value() || !b.has_value()) continue;
    if (a->rolling != b->rolling) return first_difference(q, done + 1, to);
    done = to;
  }
  return std::nullopt;
}

std::string Board::print_text(const Print& print) const {
  return call_text(print.call) + label_text(print.label);
}

Mismatch Board::first_difference(int32_t rank, uint64_t from,
                                 uint64_t to) const {
  const int32_t first = std::min(rank, rank_), second = std::max(rank, rank_);
  Mismatch found;
  found.rank = second;
  for (uint64_t n = from; n <= to; ++n) {
    auto a = read(first, n), b = read(second, n);
    if (!a.has_value() || !b.has_value()) continue;
    if (a->rolling == b->rolling) continue;
    found.number = n;
    std::string left = print_text(*a), right = print_text(*b);
    if (same_call(a->call, b->call)) {
      found.text = fmt::format(
          "rank {} and rank {} disagree on a call before operation {} of group "
          "\"{}\"; all ranks must make the same calls in the same order",
          ranks_[static_cast<size_t>(first)],
          ranks_[static_cast<size_t>(second)], n, name_);
      return found;
    }
    if (left == right) right += " with other counts";
    found.text = fmt::format(
        "operation {} of group \"{}\": rank {} called {}, rank {} called {}; "
        "all ranks must make the same calls in the same order",
        n, name_, ranks_[static_cast<size_t>(first)], left,
        ranks_[static_cast<size_t>(second)], right);
    return found;
  }
  found.number = to;
  found.text = fmt::format(
      "rank {} and rank {} made different calls on group \"{}\" up to "
      "operation {}; all ranks must make the same calls in the same order",
      ranks_[static_cast<size_t>(first)], ranks_[static_cast<size_t>(second)],
      name_, to);
  return found;
}

}  // namespace aliquot::nccl
