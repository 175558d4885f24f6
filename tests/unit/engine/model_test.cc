#include "engine/model.h"

#include <boost/test/unit_test.hpp>

namespace aliquot::engine {
namespace {

Param param(const char* name, std::vector<int64_t> shape, bool trainable,
            Dtype dtype, std::vector<int32_t> units) {
  Param p;
  p.name = name;
  p.shape = std::move(shape);
  p.count = 1;
  for (int64_t d : p.shape) p.count *= d;
  p.trainable = trainable;
  p.dtype = dtype;
  p.units = std::move(units);
  return p;
}

BOOST_AUTO_TEST_CASE(cuts_cover_everything_and_may_leave_ranks_empty) {
  for (int64_t count : {0, 1, 15, 16, 17, 100, 1000}) {
    for (int32_t shards : {1, 2, 3, 4, 8}) {
      std::vector<int64_t> cuts = even_cuts(count, shards);
      BOOST_TEST(cuts.front() == 0);
      BOOST_TEST(cuts.back() == count);
      for (size_t i = 1; i < cuts.size(); ++i)
        BOOST_TEST(cuts[i] >= cuts[i - 1]);
    }
  }
  BOOST_TEST(even_cuts(17, 4) == (std::vector<int64_t>{0, 16, 17, 17, 17}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(mixed_units_become_segments_and_tied_ones_bundles) {
  Model model;
  model.params = {param("embed", {8, 4}, true, ALQ_F32, {0, 2}),
                  param("w", {5, 5}, true, ALQ_BF16, {1}),
                  param("frozen", {3}, false, ALQ_BF16, {1}),
                  param("empty", {0, 7}, true, ALQ_BF16, {1}),
                  param("scale", {2}, true, ALQ_F32, {1})};
  model.units = {{"root", {0}, true, {}},
                 {"block", {1, 2, 3, 4}, false, {}},
                 {"head", {0}, false, {}}};
  BOOST_REQUIRE(model.build_bundles(2).ok());
  BOOST_TEST(model.bundles.size() == 2u);
  BOOST_TEST(model.bundles[0].resident);
  BOOST_TEST(model.units[0].bundles == model.units[2].bundles,
             boost::test_tools::per_element());
  const Bundle& block = model.bundles[1];
  BOOST_TEST(!block.resident);
  BOOST_TEST(block.segments.size() == 3u);
  BOOST_TEST(block.has_frozen);
  BOOST_TEST(block.trainable_params == 3);
  BOOST_TEST(model.params[3].count == 0);
  // 25 elements, rounded to 64 bytes, and nothing for the empty one.
  BOOST_TEST(block.segments[0].count == 32);
  BOOST_TEST(model.params[3].offset == 32);
}

BOOST_AUTO_TEST_CASE(a_parameter_without_a_unit_is_an_error) {
  Model model;
  model.params = {param("lost", {4}, true, ALQ_F32, {})};
  BOOST_TEST(model.build_bundles(2).code() == ALQ_FAILED_PRECONDITION);
}

BOOST_AUTO_TEST_CASE(whole_rows_are_never_cut) {
  Model model;
  model.params = {param("w", {7, 24}, true, ALQ_F32, {0})};
  model.params[0].whole_rows = true;
  model.units = {{"u", {0}, false, {}}};
  BOOST_REQUIRE(model.build_bundles(4).ok());
  for (int64_t cut : model.bundles[0].segments[0].cuts) {
    BOOST_TEST((cut % 24 == 0 || cut >= 168));
  }
}

BOOST_AUTO_TEST_CASE(replicas_divide_each_shard) {
  Model model;
  model.params = {param("w", {7, 24}, true, ALQ_F32, {0}),
                  param("empty", {0, 3}, true, ALQ_F32, {0}),
                  param("v", {101}, true, ALQ_F32, {0})};
  model.params[0].whole_rows = true;
  model.units = {{"u", {0, 1, 2}, false, {}}};
  for (int32_t shards : {1, 2, 3, 8}) {
    BOOST_REQUIRE(model.build_bundles(shards).ok());
    const Segment coarse = model.bundles[0].segments[0];
    for (int32_t replicas : {1, 2, 5}) {
      BOOST_REQUIRE(model.build_bundles(shards, replicas).ok());
      const Segment& fine = model.bundles[0].segments[0];
      int64_t at = 0;
      for (int32_t i = 0; i < shards; ++i) {
        Range shard = fine.range(Extent::kShard, i, 0);
        // Parts change nothing about the shards.
        BOOST_TEST(shard.begin == coarse.range(Extent::kShard, i, 0).begin);
        BOOST_TEST(shard.count ==
                   coarse.shard_counts()[static_cast<size_t>(i)]);
        int64_t sum = 0;
        for (int32_t j = 0; j < replicas; ++j) {
          Range part = fine.range(Extent::kPart, i, j);
          BOOST_TEST(part.begin == at);
          BOOST_TEST(part.count == fine.part_counts(i)[static_cast<size_t>(j)]);
          BOOST_TEST((part.begin >= 168 || part.begin % 24 == 0));
          at = part.end();
          sum += part.count;
        }
        BOOST_TEST(sum == shard.count);
      }
      BOOST_TEST(at == fine.count);
    }
  }
}

BOOST_AUTO_TEST_CASE(optimizer_groups_form_runs) {
  Model model;
  model.params = {param("a", {16}, true, ALQ_F32, {0}),
                  param("b", {16}, true, ALQ_F32, {0}),
                  param("c", {16}, true, ALQ_F32, {0})};
  model.params[1].optim_group = 1;
  model.units = {{"u", {0, 1, 2}, false, {}}};
  BOOST_REQUIRE(model.build_bundles(1).ok());
  const std::vector<Run>& runs = model.bundles[0].segments[0].runs;
  BOOST_REQUIRE(runs.size() == 2u);
  BOOST_TEST(runs[0].end == 32);
  BOOST_TEST(runs[1].group == 1);
  BOOST_TEST(runs[1].end == 48);
}

}  // namespace
}  // namespace aliquot::engine
