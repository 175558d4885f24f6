// Long random sequences of all kinds of operations, drawn alike by all ranks:
// what a slot kept of an earlier operation changes nothing, whatever way data
// goes and however the way changes.  Results have the bits of a sequential
// reference.
#include <random>

#include "multi/comm/cases.h"

namespace aliquot::test {
namespace {

// All fit into 15 bytes, or their ends do: of two, three and four bytes.
const char* const kLabels[] = {"",
                               "a",
                               "layer.0.attention.weight",
                               "layer.1.attention.weight",
                               "weight",
                               "äöü",
                               "ein sehr langes Schild äöüß",
                               "日本語のラベルです",
                               "😀😀😀😀",
                               "123456789012345",
                               "1234567890123456"};

class Sequence {
 public:
  Sequence(Rank& rank, std::shared_ptr<Group> group, uint32_t seed)
      : rank_(rank), group_(std::move(group)), draw_(seed) {}

  void run(int operations) {
    for (int i = 0; i < operations; ++i) one(i);
  }

 private:
  int64_t below(int64_t n) {
    return static_cast<int64_t>(draw_() % static_cast<uint64_t>(n));
  }
  int32_t me() const { return group_->rank(); }
  int32_t size() const { return group_->size(); }
  Buffer source(int64_t count, int32_t q) const {
    return filled(kDtype, count, q, salt_);
  }
  static int64_t bytes(int64_t count) { return count * dtype_size(kDtype); }

  void one(int number) {
    constexpr int64_t kMost[] = {2, 200, 1024, 1030, 6'000, 60'000};
    salt_ = number;
    count_ = below(kMost[below(6)]);
    in_place_ = below(2) == 0;
    label_ = kLabels[below(std::size(kLabels))];
    // Ranks may differ in where their memory is.
    where_ = (below(1 << 16) >> rank_.rank & 1) == 0 ? Where::kPrivate
                                                     : Where::kShared;
    switch (below(6)) {
      case 0:
      case 1: return all_reduce();
      case 2: return reduce_scatter();
      case 3: return all_gather();
      case 4: return all_to_all_v();
      default: return broadcast();
    }
  }

  Coll call(CollKind kind, const std::byte* src, std::byte* dst) const {
    Coll coll;
    coll.kind = kind;
    coll.count = count_;
    coll.src = src;
    coll.dst = dst;
    return coll;
  }
  void issue(Coll coll, const char* what) {
    coll.dtype = kDtype;
    coll.label = label_;
    rank_.check_ok(group_->issue(coll, nullptr, nullptr), what);
  }
  void check(const std::byte* got, const Buffer& want, const char* what) {
    check_bits(rank_, got, want, what, {kDtype, count_, in_place_, where_});
  }
  std::vector<Buffer> sources(int64_t count, bool scaled) {
    std::vector<Buffer> all;
    for (int32_t q = 0; q < size(); ++q) {
      all.push_back(source(count, q));
      auto* data = reinterpret_cast<float*>(all.back().data());
      for (int64_t i = 0; scaled && i < count; ++i) data[i] *= factor(q);
    }
    return all;
  }
  static float factor(int32_t q) { return 0.5f + static_cast<float>(q); }

  void all_reduce() {
    const bool scaled = below(4) == 0;
    Bytes src(rank_, where_, bytes(count_));
    Bytes dst(rank_, where_, in_place_ ? 0 : bytes(count_));
    src.set(source(count_, me()));
    Coll coll = call(CollKind::kAllReduce, src.data(),
                     in_place_ ? src.data() : dst.data());
    if (scaled) coll.factor = factor(me());
    issue(coll, "all_reduce");
    check(static_cast<std::byte*>(coll.dst),
          reduced(sources(count_, scaled), kDtype, kDtype, ALQ_SUM),
          "all_reduce");
  }

  void reduce_scatter() {
    const bool scaled = below(4) == 0;
    const int64_t total = count_ * size();
    Bytes src(rank_, where_, bytes(total));
    Bytes dst(rank_, where_, in_place_ ? 0 : bytes(count_));
    src.set(source(total, me()));
    Coll coll =
        call(CollKind::kReduceScatter, src.data(),
             in_place_ ? src.data() + bytes(me() * count_) : dst.data());
    if (scaled) coll.factor = factor(me());
    issue(coll, "reduce_scatter");
    check(static_cast<std::byte*>(coll.dst),
          slice(reduced(sources(total, scaled), kDtype, kDtype, ALQ_SUM),
                kDtype, me() * count_, count_),
          "reduce_scatter");
  }

  void all_gather() {
    Bytes src(rank_, where_, bytes(count_));
    Bytes dst(rank_, where_, bytes(count_ * size()));
    src.set(source(count_, me()));
    issue(call(CollKind::kAllGather, src.data(), dst.data()), "all_gather");
    Buffer want;
    for (const Buffer& part : sources(count_, false)) {
      want.insert(want.end(), part.begin(), part.end());
    }
    check(dst.data(), want, "all_gather");
  }

  // Rank q sends (q + r + 1) * unit elements to rank r, or nothing.
  int64_t sent(int32_t q, int32_t r) const {
    return (q + r) % 3 == 1 ? 0 : (q + r + 1) * (count_ / 8);
  }
  void all_to_all_v() {
    std::vector<int64_t> to, from;
    int64_t out = 0, in = 0;
    for (int32_t q = 0; q < size(); ++q) {
      out += to.emplace_back(sent(me(), q));
      in += from.emplace_back(sent(q, me()));
    }
    Bytes src(rank_, where_, bytes(out)), dst(rank_, where_, bytes(in));
    src.set(source(out, me()));
    Coll coll;
    coll.kind = CollKind::kAllToAllV;
    coll.counts = to;
    coll.recv_counts = from;
    coll.src = src.data();
    coll.dst = dst.data();
    issue(coll, "all_to_all_v");
    Buffer want;
    for (int32_t q = 0; q < size(); ++q) {
      int64_t begin = 0, total = 0;
      for (int32_t r = 0; r < size(); ++r) {
        begin += r < me() ? sent(q, r) : 0;
        total += sent(q, r);
      }
      Buffer part = slice(source(total, q), kDtype, begin, sent(q, me()));
      want.insert(want.end(), part.begin(), part.end());
    }
    check(dst.data(), want, "all_to_all_v");
  }

  void broadcast() {
    const auto root = static_cast<int32_t>(below(size()));
    Bytes data(rank_, where_, bytes(count_));
    if (me() == root) data.set(source(count_, root));
    Coll coll = call(CollKind::kBroadcast, data.data(), data.data());
    coll.root = root;
    issue(coll, "broadcast");
    check(data.data(), source(count_, root), "broadcast");
  }

  static constexpr Dtype kDtype = ALQ_F32;
  Rank& rank_;
  std::shared_ptr<Group> group_;
  std::mt19937_64 draw_;
  int64_t salt_ = 0, count_ = 0;
  bool in_place_ = false;
  const char* label_ = "";
  Where where_ = Where::kPrivate;
};

constexpr int kOperations = kSanitized ? 60 : 300;

void sequence(Rank& rank) {
  Sequence(rank, rank.group, 7).run(kOperations);
  // A group whose first rank is another.
  auto reversed =
      rank.group->split(0, -rank.rank, "reversed", rank.context->deadline(0));
  rank.check_ok(reversed.status(), "split");
  if (reversed.ok()) Sequence(rank, *reversed, 8).run(kOperations / 3);
}

BOOST_AUTO_TEST_CASE(kinds_sizes_places_and_labels_mix) {
  everywhere({2, 3, 4}, sequence);
  if (!kThreadSanitizer) everywhere({3, 4}, sequence, {RankKind::kMixed});
}

// Everything staged, or nothing; stored through the caches, or past them.
BOOST_AUTO_TEST_CASE(whatever_hints_say) {
  if (kThreadSanitizer) return;
  for (RankKind kind : {RankKind::kProcesses, RankKind::kMixed}) {
    for (int64_t limit : {0, 1 << 30}) {
      for (int32_t streams : {0, 1}) {
        RanksOptions how = options(3, kind);
        how.stage_limit = limit;
        how.stage_streams = streams;
        auto result = run_ranks(how, sequence);
        BOOST_TEST(result.ok(), kind_name(kind)
                                    << " limit " << limit << " streams "
                                    << streams << ": " << result.text());
      }
    }
  }
}

// Ways change while equal all-reduces of private memory go on.
BOOST_AUTO_TEST_CASE(sums_stay_while_ways_change) {
  for (RankKind kind :
       {RankKind::kThreads, RankKind::kProcesses, RankKind::kMixed}) {
    if (kThreadSanitizer && kind != RankKind::kThreads) continue;
    for (int32_t streams : {-1, 1}) {
      RanksOptions how = options(4, kind);
      how.stage_streams = streams;
      auto result = run_ranks(how, [](Rank& rank) {
        for (int64_t count : {30'001, 400'003, 2'500'007}) {
          const Case c{ALQ_F32, count};
          std::vector<Buffer> all = all_filled(rank, c, count);
          const Buffer want = reduced(all, ALQ_F32, ALQ_F32, ALQ_SUM);
          Buffer src = all[static_cast<size_t>(rank.rank)];
          Buffer dst(src.size());
          const int rounds = count > 1'000'000 || kSanitized ? 8 : 40;
          for (int i = 0; i < rounds; ++i) {
            const bool in_place = i % 3 == 2;
            Buffer own = src;
            std::fill(dst.begin(), dst.end(), std::byte{0xff});
            Coll coll = coll_of(CollKind::kAllReduce, c);
            coll.src = own.data();
            coll.dst = in_place ? own.data() : dst.data();
            rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "sum");
            check_bits(rank, static_cast<std::byte*>(coll.dst), want,
                       "all_reduce", c);
          }
        }
      });
      BOOST_TEST(result.ok(), kind_name(kind) << " streams " << streams << ": "
                                              << result.text());
    }
  }
}

// Each rank calls with its own label: an error has what this call was named,
// not what the slot was used for before.
BOOST_AUTO_TEST_CASE(errors_have_the_calls_own_labels) {
  struct Names {
    const char *before, *even, *odd;  // earlier; then of rank 0 and of rank 1
    const char *shown_even, *shown_odd;
  };
  const Names names[] = {
      {"a longer name than fits", "b", "c", "\"b\"", "\"c\""},
      {"ab", "abc", "a", "\"abc\"", "\"a\""},
      {"same", "same", "other", "\"same\"", "\"other\""},
      {"gone", "", "there", "all_reduce(5 x f32, sum),", "\"there\""},
      {"x", "äöüäöüäöü", "y", "\"üäöüäöü\"", "\"y\""}};
  for (RankKind kind : kinds()) {
    for (int32_t before : {2, 3}) {  // operations, so either slot comes next
      for (const Names& n : names) {
        auto result = run_ranks(options(2, kind), [&](Rank& rank) {
          std::vector<float> src(5, 1.0f), dst(5);
          Coll coll;
          coll.kind = CollKind::kAllReduce;
          coll.dtype = ALQ_F32;
          coll.count = 5;
          coll.src = src.data();
          coll.dst = dst.data();
          coll.label = n.before;
          for (int i = 0; i < before; ++i) {
            rank.check_ok(rank.group->issue(coll, nullptr, nullptr), "before");
          }
          coll.label = rank.rank == 0 ? n.even : n.odd;
          if (rank.rank == 1) coll.count = 4;
          Status status = rank.group->issue(coll, nullptr, nullptr);
          rank.check(status.code() == ALQ_RANK_MISMATCH, status.message());
          for (const char* part : {n.shown_even, n.shown_odd}) {
            rank.check(status.message().find(part) != std::string::npos,
                       fmt::format("{} in: {}", part, status.message()));
          }
        });
        BOOST_TEST(result.ok(), n.before << ": " << result.text());
      }
    }
  }
}

}  // namespace
}  // namespace aliquot::test
