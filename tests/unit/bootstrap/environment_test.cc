#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <map>

#include "comm/bootstrap/bootstrap.h"

namespace aliquot {
namespace {

using Variables = std::map<std::string, std::string>;

const char* const kNames[] = {"ALIQUOT_RANK",
                              "ALIQUOT_WORLD_SIZE",
                              "ALIQUOT_LOCAL_RANK",
                              "ALIQUOT_LOCAL_SIZE",
                              "ALIQUOT_STORE",
                              "ALIQUOT_SECRET",
                              "RANK",
                              "WORLD_SIZE",
                              "LOCAL_RANK",
                              "LOCAL_WORLD_SIZE",
                              "MASTER_ADDR",
                              "MASTER_PORT",
                              "TORCHELASTIC_RUN_ID",
                              "TORCHELASTIC_RESTART_COUNT",
                              "OMPI_COMM_WORLD_SIZE",
                              "SLURM_STEP_NUM_TASKS",
                              "PMI_SIZE"};

Result<Place> read(const Variables& variables) {
  for (const char* name : kNames) unsetenv(name);
  for (auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  Result<Place> place = place_from_environment();
  for (const char* name : kNames) unsetenv(name);
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
  expect_error({{"OMPI_COMM_WORLD_SIZE", "4"}}, {"Open MPI", "ALIQUOT_RANK"});
  expect_error({{"SLURM_STEP_NUM_TASKS", "2"}}, {"Slurm"});
  BOOST_TEST(read({{"OMPI_COMM_WORLD_SIZE", "1"}}).ok());
  BOOST_TEST(read(with(kOwn, {{"PMI_SIZE", "4"}})).ok());
}

}  // namespace
}  // namespace aliquot
