// The flight recorder's file holds what was recorded, in order, and the first
// error; wrapped or wrong use does no harm.
#include "base/flight.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

namespace aliquot {
namespace {

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/alq-flight-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string file() const { return path_ + "/rank-3.flight"; }
  std::unique_ptr<FlightFile> read() const {
    std::ifstream in(file(), std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    BOOST_REQUIRE(bytes.size() == sizeof(FlightFile));
    auto out = std::make_unique<FlightFile>();
    std::memcpy(static_cast<void*>(out.get()), bytes.data(), bytes.size());
    return out;
  }

 private:
  std::string path_;
};

std::unique_ptr<Flight> make(const Folder& folder) {
  auto flight =
      Flight::create(folder.path(), 3, 4, {{"all_reduce"}, {"", "f64"}});
  BOOST_REQUIRE(flight.ok());
  return std::move(*flight);
}

FlightCall call(uint64_t number, const char* label = "") {
  FlightCall c;
  c.number = number;
  c.count = 7;
  c.dtype = 1;
  c.label = label;
  return c;
}

BOOST_AUTO_TEST_CASE(what_was_recorded_is_in_the_file_at_once) {
  Folder folder;
  auto flight = make(folder);
  const int32_t ranks[] = {0, 3};
  BOOST_TEST(flight->add_group("pair", ranks) == 0u);
  uint64_t first = flight->begin(call(1, "block0"));
  uint64_t second = flight->begin(call(2));
  flight->set(first, kFlightArrived);
  flight->set(first, kFlightDone);
  flight->set(second, kFlightArrived);
  auto file = folder.read();  // while the recorder is open
  BOOST_TEST(std::memcmp(file->header.magic, kFlightMagic, 8) == 0);
  BOOST_TEST(file->header.rank == 3);
  BOOST_TEST(file->header.pid == getpid());
  BOOST_TEST(file->header.ending.load() == kFlightOpen);
  BOOST_TEST(std::string(file->groups[0].name) == "pair");
  BOOST_TEST(file->groups[0].ranks[1] == 3);
  const FlightRecord& a = file->records[1];
  BOOST_TEST(a.order == 1u);
  BOOST_TEST(a.state.load() == kFlightDone);
  BOOST_TEST(a.ended_ns >= a.issued_ns);
  BOOST_TEST(std::string(a.label) == "block0");
  BOOST_TEST(file->records[2].state.load() == kFlightArrived);
  struct stat info = {};
  BOOST_REQUIRE(stat(folder.file().c_str(), &info) == 0);
  BOOST_TEST((info.st_mode & 0777) == 0600u);
}

BOOST_AUTO_TEST_CASE(
    the_ring_keeps_the_last_and_late_news_of_others_is_dropped) {
  Folder folder;
  auto flight = make(folder);
  uint64_t old = flight->begin(call(1));
  for (uint64_t n = 2; n <= kFlightRecords + 1; ++n) flight->begin(call(n));
  flight->set(old, kFlightError);  // its place is another's now
  auto file = folder.read();
  for (const FlightRecord& r : file->records) {
    BOOST_TEST(r.order >= 2u);
    BOOST_TEST(r.number == r.order);
    BOOST_TEST(r.state.load() == kFlightIssued);
  }
}

BOOST_AUTO_TEST_CASE(
    the_first_error_stays_and_a_close_after_it_does_not_count) {
  Folder folder;
  auto flight = make(folder);
  flight->fail(
      make_error(ALQ_PEER_FAILED, "{}", std::string(2000, 'x')).with_rank(2));
  flight->fail(make_error(ALQ_INTERNAL, "later"));
  flight->close();
  auto file = folder.read();
  BOOST_TEST(file->header.ending.load() == kFlightFailed);
  BOOST_TEST(file->header.error_rank == 2);
  BOOST_TEST(file->header.error_code == ALQ_PEER_FAILED);
  BOOST_TEST(std::strlen(file->header.error) == sizeof file->header.error - 1);
}

// A record of a join that failed gives way to that of the next attempt; one of
// a rank that had groups stays.
BOOST_AUTO_TEST_CASE(a_rank_that_joins_again_is_recorded_in_its_place) {
  Folder folder;
  make(folder)->fail(make_error(ALQ_DEADLINE_EXCEEDED, "alone").with_rank(1));
  BOOST_TEST(folder.read()->header.ending.load() == kFlightFailed);
  auto flight = make(folder);
  BOOST_TEST(folder.read()->header.ending.load() == kFlightOpen);
  const int32_t ranks[] = {0, 3};
  flight->add_group("pair", ranks);
  flight->fail(make_error(ALQ_PEER_FAILED, "worked before").with_rank(0));
  make(folder);
  BOOST_TEST(std::string(folder.read()->header.error) == "worked before");
}

BOOST_AUTO_TEST_CASE(more_groups_than_the_table_holds) {
  Folder folder;
  auto flight = make(folder);
  std::vector<int32_t> ranks(200, 1);
  for (uint32_t i = 0; i < 2 * kFlightGroups; ++i) {
    BOOST_TEST(flight->add_group("g", ranks) <= kFlightGroups - 1);
  }
  BOOST_TEST(folder.read()->header.groups == kFlightGroups);
}

BOOST_AUTO_TEST_CASE(threads_record_at_once) {
  Folder folder;
  auto flight = make(folder);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < 100; ++i) {
        flight->set(flight->begin(call(i)), kFlightDone);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  auto file = folder.read();
  for (uint64_t n = 1; n <= 400; ++n) {
    BOOST_TEST(file->records[n].order == n);
    BOOST_TEST(file->records[n].state.load() == kFlightDone);
  }
}

BOOST_AUTO_TEST_CASE(a_folder_that_can_not_be_written_is_an_error) {
  auto flight = Flight::create("/nowhere/at/all", 0, 1, {});
  BOOST_TEST(flight.status().code() == ALQ_UNAVAILABLE);
  BOOST_TEST(flight.status().message().find("/nowhere/at/all") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(records_of_a_live_context_are_left_alone) {
  Folder folder;
  auto first = make(folder);
  uint64_t n = first->begin(call(1, "block0"));
  {
    auto second = make(folder);  // the same rank of another world
    second->begin(call(9, "other"));
  }
  first->set(n, kFlightDone);  // its file is as long as it was
  auto file = folder.read();
  BOOST_TEST(file->records[1].number == 1u);
  BOOST_TEST(file->records[1].state.load() == kFlightDone);
  first->close();
  auto third = make(folder);  // takes the place of one that ended
  third->begin(call(5));
  BOOST_TEST(folder.read()->records[1].number == 5u);
}

BOOST_AUTO_TEST_CASE(records_of_the_dead_are_replaced) {
  Folder folder;
  pid_t child = fork();
  if (child == 0) {
    make(folder).release();
    _exit(0);
  }
  int status = 0;
  BOOST_REQUIRE(waitpid(child, &status, 0) == child);
  auto flight = make(folder);
  BOOST_TEST(folder.read()->header.pid == getpid());
}

}  // namespace
}  // namespace aliquot
