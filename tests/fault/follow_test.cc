// A group that fails with another one: nobody is given what comes of an
// operation that failed.
#include <algorithm>
#include <array>
#include <boost/test/unit_test.hpp>
#include <vector>

#include "fault/failing.h"

namespace aliquot::test {
namespace {

constexpr int64_t kCount = 3000;

// Rank 2 gives to rank 0, which gives to rank 1, and then to rank 3.
class Chain {
 public:
  Chain(Rank& rank, bool queued)
      : rank_(rank), mine_(kCount, 1), all_(2 * kCount) {
    const int32_t givers[][2] = {{0, 2}, {0, 1}, {0, 3}};
    for (size_t i = 0; i < groups_.size(); ++i) {
      const bool in = std::ranges::find(givers[i], rank.rank) !=
                      std::ranges::end(givers[i]);
      auto made = rank.group->split(in ? 0 : -1, 0, fmt::format("link {}", i),
                                    in_ms(5000));
      rank.check_ok(made.status(), "split");
      groups_[i] = *made;
    }
    if (queued) stream_ = *rank.device->create_stream("s");
    if (rank.rank != 0) return;
    groups_[1]->fail_with(*groups_[0]);
    groups_[1]->fail_with(*groups_[0]);
    groups_[2]->fail_with(*groups_[1]);
    groups_[2]->on_failure(raised_word_);
    groups_[2]->on_failure(taken_word_);
    taken_word_->take_back();
  }

  ~Chain() { raised_word_->take_back(); }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  // What the links of this rank say.
  std::vector<Status> pass_on() {
    std::vector<Status> said;
    std::vector<std::shared_ptr<Work>> works;
    for (const auto& group : groups_) {
      if (group == nullptr) continue;
      std::shared_ptr<Work> work;
      Coll coll =
          coll_of(CollKind::kAllGather, kCount, mine_.data(), all_.data(), 0);
      said.push_back(group->issue(coll, stream_.get(), &work));
      works.push_back(std::move(work));
    }
    rank_.shared(0).fetch_add(1);
    for (size_t i = 0; i < said.size(); ++i) {
      if (said[i].ok()) said[i] = works[i]->wait(in_ms(5000));
    }
    return said;
  }

  Group& first() { return *groups_[0]; }
  // Of rank 0: of the last link's words, one is still its own.
  bool told() const { return raised_.load() == 1 && taken_.load() == 0; }

 private:
  Rank& rank_;
  std::array<std::shared_ptr<Group>, 3> groups_;
  std::shared_ptr<Stream> stream_;
  std::vector<float> mine_, all_;
  std::atomic<uint32_t> raised_{0}, taken_{0};
  std::shared_ptr<FailWord> raised_word_ = std::make_shared<FailWord>(&raised_);
  std::shared_ptr<FailWord> taken_word_ = std::make_shared<FailWord>(&taken_);
};

void give_up_in_the_second_round(Rank& rank, bool queued) {
  Chain chain(rank, queued);
  for (const Status& said : chain.pass_on()) rank.check_ok(said, "at first");
  rank.check_ok(rank.group->issue(Coll{}, nullptr, nullptr), "the world");
  if (rank.rank == 2) {
    // In the midst of what the others have put on their streams.
    for (int i = 0; queued && rank.shared(0).load() < 7 && i < 5000; ++i) {
      usleep(1000);
    }
    chain.first().abort(make_error(ALQ_ABORTED, "gave up").with_rank(2));
  } else {
    for (const Status& said : chain.pass_on()) {
      rank.check(said.code() == ALQ_ABORTED && said.rank() == 2,
                 said.message());
    }
  }
  rank.check(rank.rank != 0 || chain.told(), "the word was raised");
  rank.check_ok(rank.group->issue(Coll{}, nullptr, nullptr), "the world");
}

BOOST_AUTO_TEST_CASE(who_follows_a_group_fails_with_it) {
  for (RankKind kind : kinds()) {
    for (bool queued : {true, false}) {
      auto result = run_ranks(options(4, kind), [&](Rank& rank) {
        give_up_in_the_second_round(rank, queued);
      });
      BOOST_TEST(result.ok(), kind_name(kind) << ": " << result.text());
    }
  }
}

}  // namespace
}  // namespace aliquot::test
