#define BOOST_TEST_MODULE mesh
#include "mesh/mesh.h"

#include <boost/test/unit_test.hpp>

namespace aliquot {
namespace {

// A world that only has a rank and a size: enough for what makes no groups.
class Ranks : public Group {
 public:
  Ranks(int32_t rank, int32_t size) : rank_(rank), size_(size) {}
  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }
  std::span<const int32_t> ranks() const override { return {}; }
  const std::string& name() const override { return name_; }
  Status issue(const Coll&, Stream*, std::shared_ptr<Work>*) override {
    return make_error(ALQ_UNSUPPORTED, "no collectives");
  }
  Result<std::shared_ptr<Group>> split(int32_t color, int32_t, std::string name,
                                       Deadline) override {
    ++splits;
    last_color = color;
    last_name = name;
    return std::shared_ptr<Group>(std::make_shared<Ranks>(0, 1));
  }
  Result<std::shared_ptr<Group>> shrink(Deadline) override {
    return make_error(ALQ_UNSUPPORTED, "no members");
  }
  Result<std::unique_ptr<Memory>> allocate_common(int64_t, std::string,
                                                  Deadline) override {
    return make_error(ALQ_UNSUPPORTED, "no memory");
  }
  Abilities abilities() const override { return {}; }
  int64_t timeout_ns() const override { return 0; }
  void set_timeout_ns(int64_t) override {}
  Status status() const override { return {}; }
  GroupStats stats() const override { return {}; }
  PrivateMemory private_memory() const override { return {}; }
  void abort(const Status&) override {}
  void fail_with(Group&) override {}
  void on_failure(std::shared_ptr<FailWord>) override {}
  Status close(Deadline) override { return {}; }

  int splits = 0;
  int32_t last_color = -1;
  std::string last_name;

 private:
  int32_t rank_, size_;
  std::string name_ = "world";
};

Mesh mesh_of(const char* spec, int32_t rank, int32_t world) {
  Result<std::vector<Axis>> axes = parse_mesh(spec, world);
  BOOST_REQUIRE_MESSAGE(axes.ok(), axes.status().message());
  return Mesh(std::make_shared<Ranks>(rank, world), *axes);
}

BOOST_AUTO_TEST_CASE(sizes_multiply_to_the_world_and_one_may_be_the_rest) {
  BOOST_TEST(parse_mesh("", 6)->at(0).size == 6);
  Result<std::vector<Axis>> axes = parse_mesh("pp=2, dp_shard=-1,tp=2", 12);
  BOOST_REQUIRE(axes.ok());
  BOOST_TEST(axes->at(1).size == 3);
  for (const char* bad :
       {"dp_shard=5", "dp_shard", "dp_shard=0", "dp_shard=-2", "a=-1,b=-1",
        "dp_shard=2,dp_shard=2", "=4", "dp shard=4", "dp_shard=4x", "tp=3,a=-1",
        "x=99999999999"}) {
    BOOST_TEST(!parse_mesh(bad, 4).ok(), bad);
  }
}

BOOST_AUTO_TEST_CASE(the_first_axis_is_the_slowest) {
  Mesh mesh = mesh_of("dp_replicate=2,dp_shard=4", 5, 8);
  BOOST_TEST(mesh.axis_size("dp_shard") == 4);
  BOOST_TEST(mesh.axis_size("tp") == 1);
  BOOST_TEST(mesh.coordinate("dp_replicate", 5) == 1);
  BOOST_TEST(mesh.coordinate("dp_shard", 5) == 1);
  BOOST_TEST(mesh.coordinate("tp", 5) == 0);
}

BOOST_AUTO_TEST_CASE(rank_lists_follow_the_named_axes) {
  Mesh mesh = mesh_of("pp=2,dp_shard=2,tp=2", 5, 8);
  auto ranks = [&](const char* axes, int32_t rank) {
    return *mesh.ranks(axes, rank);
  };
  using List = std::vector<int32_t>;
  BOOST_TEST(ranks("tp", 5) == (List{4, 5}), boost::test_tools::per_element());
  BOOST_TEST(ranks("dp_shard", 5) == (List{5, 7}),
             boost::test_tools::per_element());
  BOOST_TEST(ranks("pp", 5) == (List{1, 5}), boost::test_tools::per_element());
  BOOST_TEST(ranks("tp,pp", 2) == (List{2, 3, 6, 7}),
             boost::test_tools::per_element());
  BOOST_TEST(ranks("", 3) == (List{3}), boost::test_tools::per_element());
  BOOST_TEST(ranks("cp", 3) == (List{3}), boost::test_tools::per_element());
  BOOST_TEST(!mesh.ranks("no such", 3).ok());
}

BOOST_AUTO_TEST_CASE(a_group_is_made_once_per_axes_and_purpose) {
  auto world = std::make_shared<Ranks>(5, 8);
  Mesh mesh(world, *parse_mesh("pp=2,dp_shard=4", 8));
  Deadline deadline = Deadline::after(1'000'000'000);
  auto a = mesh.group("dp_shard", "gather", deadline);
  auto b = mesh.group("dp_shard", "gather", deadline);
  auto c = mesh.group("dp_shard", "reduce", deadline);
  BOOST_REQUIRE(a.ok());
  BOOST_TEST(a->get() == b->get());
  BOOST_TEST(a->get() != c->get());
  BOOST_TEST(world->splits == 2);
  BOOST_TEST(world->last_color == 4);
  BOOST_TEST(world->last_name == "dp_shard reduce");
}

}  // namespace
}  // namespace aliquot
