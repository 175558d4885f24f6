#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <map>

#include "comm/bootstrap/bootstrap.h"
#include "support/launcher_variables.h"

namespace aliquot {
namespace {

using Variables = std::map<std::string, std::string>;

Result<Place> read(const Variables& variables) {
  for (const char* name : test::kLauncherVariables) unsetenv(name);
  for (auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  Result<Place> place = place_from_environment();
  for (const char* name : test::kLauncherVariables) unsetenv(name);
  return place;
}

void expect_error(const Variables& variables,
                  const std::vector<std::string>& words) {
  Result<Place> place = read(variables);
  BOOST_REQUIRE(!place.ok());
  BOOST_TEST(place.status().code() == ALQ_INVALID_ARGUMENT);
  for (const std::string& word : words) {
    BOOST_TEST(place.status().message().find(word) != std::string::npos,
               word << " in: " << place.status().message());
  }
}

const Variables kOwn = {{"ALIQUOT_RANK", "2"},
                        {"ALIQUOT_WORLD_SIZE", "8"},
                        {"ALIQUOT_LOCAL_RANK", "0"},
                        {"ALIQUOT_LOCAL_SIZE", "2"},
                        {"ALIQUOT_STORE", "node1:29500"},
                        {"ALIQUOT_SECRET", "s"}};
const Variables kTorch = {{"RANK", "1"},
                          {"WORLD_SIZE", "4"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "somehost"},
                          {"MASTER_PORT", "29400"}};

Variables with(Variables base, const Variables& more) {
  for (auto& [name, value] : more) base[name] = value;
  return base;
}
Variables without(Variables base, const std::string& name) {
  base.erase(name);
  return base;
}

BOOST_AUTO_TEST_CASE(no_variables_is_a_world_of_one) {
  Result<Place> place = read({});
  BOOST_REQUIRE(place.ok());
  BOOST_TEST(place->size == 1);
  BOOST_TEST(place->source == "none");
}

BOOST_AUTO_TEST_CASE(own_variables_are_read) {
  Result<Place> place = read(kOwn);
  BOOST_REQUIRE(place.ok());
  BOOST_TEST(place->rank == 2);
  BOOST_TEST(place->size == 8);
  BOOST_TEST(place->local_rank == 0);
  BOOST_TEST(place->local_size == 2);
  BOOST_TEST(place->address == "node1:29500");
  BOOST_TEST(place->secret == "s");
  BOOST_TEST(place->source == "aliquot");
}

BOOST_AUTO_TEST_CASE(a_half_set_source_names_what_is_missing) {
  for (const char* name : {"ALIQUOT_RANK", "ALIQUOT_WORLD_SIZE",
                           "ALIQUOT_LOCAL_RANK", "ALIQUOT_STORE"}) {
    expect_error(without(kOwn, name), {"half set", name});
  }
  expect_error(without(kOwn, "ALIQUOT_SECRET"), {"set ALIQUOT_SECRET"});
  for (const char* name :
       {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"}) {
    expect_error(without(kTorch, name), {"half set", name});
  }
  expect_error({{"MASTER_ADDR", "h"}}, {"RANK", "WORLD_SIZE"});
}

BOOST_AUTO_TEST_CASE(numbers_are_checked) {
  for (const char* bad : {"x", "-1", "3.0", "99999999999", "8"}) {
    expect_error(with(kOwn, {{"ALIQUOT_RANK", bad}}), {"ALIQUOT_RANK", bad});
  }
  expect_error(with(kOwn, {{"ALIQUOT_LOCAL_RANK", "2"}}), {"not below"});
  expect_error(with(kOwn, {{"ALIQUOT_LOCAL_SIZE", "9"}}), {"more than"});
  expect_error(with(kTorch, {{"MASTER_PORT", "70000"}}), {"MASTER_PORT"});
}

BOOST_AUTO_TEST_CASE(two_sources_may_agree_but_not_disagree) {
  Variables agree = with(kOwn, {{"RANK", "2"}, {"WORLD_SIZE", "8"}});
  BOOST_REQUIRE(read(agree).ok());
  BOOST_TEST(read(agree)->source == "aliquot");
  expect_error(with(kOwn, kTorch), {"ALIQUOT_RANK=2", "RANK=1",
                                    "ALIQUOT_WORLD_SIZE=8", "WORLD_SIZE=4"});
}

BOOST_AUTO_TEST_CASE(torchrun_on_one_host_meets_on_loopback_after_its_port) {
  Result<Place> place = read(kTorch);
  BOOST_REQUIRE(place.ok());
  BOOST_TEST(place->source == "torchrun");
  BOOST_TEST(place->generation == 0u);
  BOOST_TEST(
      read(with(kTorch, {{"TORCHELASTIC_RESTART_COUNT", "3"}}))->generation ==
      3u);
  BOOST_TEST(exchange_key("world", 3) == "world@3");
  BOOST_TEST(place->address == "127.0.0.1:29401-29416");
  BOOST_TEST(place->secret.size() == 64);
  // Another run id or restart is another job.
  Result<Place> other = read(with(kTorch, {{"TORCHELASTIC_RUN_ID", "j2"}}));
  BOOST_REQUIRE(other.ok());
  BOOST_TEST(other->secret != place->secret);
  BOOST_TEST(read(with(kTorch, {{"MASTER_PORT", "65530"}}))->address ==
             "127.0.0.1:65514-65529");
}

BOOST_AUTO_TEST_CASE(torchrun_on_several_hosts_needs_a_secret) {
  Variables two = with(kTorch, {{"LOCAL_WORLD_SIZE", "2"}});
  expect_error(two, {"set ALIQUOT_SECRET"});
  Result<Place> place = read(with(two, {{"ALIQUOT_SECRET", "s3"}}));
  BOOST_REQUIRE(place.ok());
  BOOST_TEST(place->address == "somehost:29401-29416");
  place = read(with(two, {{"ALIQUOT_SECRET", "s"}, {"ALIQUOT_STORE", "h:9"}}));
  BOOST_REQUIRE(place.ok());
  BOOST_TEST(place->address == "h:9");
}

BOOST_AUTO_TEST_CASE(variables_set_by_hand_on_loopback_suffice) {
  Result<Place> place = read({{"RANK", "1"},
                              {"WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "localhost"},
                              {"MASTER_PORT", "29500"}});
  BOOST_REQUIRE(place.ok());
  BOOST_TEST(place->local_rank == 1);
  BOOST_TEST(place->local_size == 2);
  BOOST_TEST(place->address == "localhost:29501-29516");
}

BOOST_AUTO_TEST_CASE(a_world_of_one_needs_no_store) {
  Result<Place> place = read({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  BOOST_REQUIRE(place.ok());
  BOOST_TEST(place->size == 1);
  BOOST_TEST(place->local_size == 1);
}

BOOST_AUTO_TEST_CASE(launchers_that_are_not_read_do_not_pass_silently) {
  expect_error({{"PMI_SIZE", "4"}}, {"PMI", "ALIQUOT_RANK"});
  BOOST_TEST(read({{"PMI_SIZE", "1"}}).ok());
  BOOST_TEST(read(with(kOwn, {{"PMI_SIZE", "4"}})).ok());
}

const Variables kMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                        {"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                        {"PMIX_NAMESPACE", "327614465"}};
const Variables kSlurmStep = {
    {"SLURM_PROCID", "3"},  {"SLURM_STEP_NUM_TASKS", "4"},
    {"SLURM_LOCALID", "3"}, {"SLURM_STEP_NUM_NODES", "1"},
    {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}};

BOOST_AUTO_TEST_CASE(open_mpi_on_one_host) {
  Place p = *read(kMpi);
  BOOST_TEST(p.source == "openmpi");
  BOOST_TEST(p.rank == 1);
  BOOST_TEST(p.size == 4);
  BOOST_TEST(p.local_rank == 1);
  BOOST_TEST(p.local_size == 4);
  BOOST_TEST(p.address.starts_with("127.0.0.1:"));
  BOOST_TEST(p.secret.size() == 64u);
  // All ranks of a job meet at one place; another job has another.
  Place same = *read(with(kMpi, {{"OMPI_COMM_WORLD_RANK", "0"},
                                 {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}));
  BOOST_TEST(same.address == p.address);
  BOOST_TEST(same.secret == p.secret);
  Place other = *read(with(kMpi, {{"PMIX_NAMESPACE", "327614466"}}));
  BOOST_TEST(other.secret != p.secret);
  BOOST_TEST(read(with(kMpi, {{"ALIQUOT_SECRET", "own"}}))->secret == "own");
  // One of the launchers that say where to meet goes first.
  BOOST_TEST(read(with(kMpi, kOwn))->source == "aliquot");
}

BOOST_AUTO_TEST_CASE(slurm_on_one_host) {
  Place p = *read(kSlurmStep);
  BOOST_TEST(p.source == "slurm");
  BOOST_TEST(p.rank == 3);
  BOOST_TEST(p.size == 4);
  BOOST_TEST(p.local_rank == 3);
  BOOST_TEST(p.local_size == 4);
  BOOST_TEST(p.address.starts_with("127.0.0.1:"));
  BOOST_TEST(p.secret !=
             read(with(kSlurmStep, {{"SLURM_STEP_ID", "1"}}))->secret);
  // One task: nobody to meet.
  Place one = *read({{"SLURM_PROCID", "0"},
                     {"SLURM_LOCALID", "0"},
                     {"SLURM_STEP_NUM_TASKS", "1"},
                     {"SLURM_STEP_NUM_NODES", "1"}});
  BOOST_TEST(one.size == 1);
}

BOOST_AUTO_TEST_CASE(jobs_over_hosts_must_say_where_to_meet) {
  expect_error(with(kSlurmStep, {{"SLURM_STEP_NUM_NODES", "2"}}),
               {"slurm", "several hosts", "ALIQUOT_STORE"});
  expect_error(with(kMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}),
               {"openmpi", "several hosts", "ALIQUOT_STORE"});
  expect_error(with(with(kSlurmStep, {{"SLURM_STEP_NUM_NODES", "2"}}),
                    {{"ALIQUOT_STORE", "node1:29500"}}),
               {"ALIQUOT_SECRET"});
  Place p =
      *read(with(with(kSlurmStep, {{"SLURM_STEP_NUM_NODES", "2"}}),
                 {{"ALIQUOT_STORE", "node1:29500"}, {"ALIQUOT_SECRET", "s"}}));
  BOOST_TEST(p.source == "slurm");
  BOOST_TEST(p.address == "node1:29500");
  BOOST_TEST(p.rank == 3);
  expect_error({{"OMPI_COMM_WORLD_SIZE", "4"}}, {"OMPI_COMM_WORLD_RANK"});
  expect_error(with(kSlurmStep, {{"SLURM_PROCID", "4"}}), {"SLURM_PROCID"});
  expect_error(with(kSlurmStep, {{"SLURM_PROCID", "x"}}), {"SLURM_PROCID"});
}

}  // namespace
}  // namespace aliquot
