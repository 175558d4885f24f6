// aliquot blame, on real jobs that fail at a placed point, on records made by
// hand, and on files that are garbage.
#include "tools/blame.h"

#include <fmt/format.h>
#include <locale.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "multi/tools/process.h"

namespace aliquot::testing {
namespace {

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/alq-blame-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Outcome failing_job(const Folder& folder, const char* fault) {
  setenv("ALIQUOT_FAULT", fault, 1);
  Outcome o =
      aliquot({"run", "-n", "3", "--flight", folder.path(), "--", ABI_RANK});
  unsetenv("ALIQUOT_FAULT");
  return o;
}

BOOST_AUTO_TEST_CASE(a_killed_rank_is_blamed_by_launcher_and_command) {
  Folder folder;
  Outcome job = failing_job(folder, "coll.data@1=kill");
  BOOST_TEST(job.code == 128 + 9);
  BOOST_TEST(has(job.err, "aliquot run: rank 1"), job.err);
  Outcome o = aliquot({"blame", folder.path(), "--ranks"});
  BOOST_TEST(o.code == 0, o.err);
  BOOST_TEST(o.out.starts_with("rank 1"), o.out);
  // Whether the others said who it was or were ended before they could.
  BOOST_TEST(
      has(o.out,
          "was killed by signal 9 (Killed) in all_reduce #1 (1000 x f64) "
          "of group \"world\""),
      o.out);
  BOOST_TEST(has(o.out, "ranks 0 and 2 were waiting in all_reduce #1"), o.out);
  BOOST_TEST(has(o.out, "rank 1: gone"), o.out);
}

BOOST_AUTO_TEST_CASE(a_rank_that_exits_before_it_calls_is_blamed) {
  Folder folder;
  Outcome job = failing_job(folder, "coll.issue@2=exit");
  // The others' errors may be found at the same time.
  BOOST_TEST((job.code == 7 || job.code == 1));
  Outcome o = aliquot({"blame", folder.path()});
  BOOST_TEST(o.code == 0);
  BOOST_TEST(o.out.starts_with("rank 2"), o.out);
  BOOST_TEST(has(o.out, "before its first operation"), o.out);
}

BOOST_AUTO_TEST_CASE(a_rank_with_an_error_of_its_own_is_blamed_with_it) {
  Folder folder;
  Outcome job = failing_job(folder, "coll.data@1=error");
  BOOST_TEST(job.code != 0);
  Outcome o = aliquot({"blame", folder.path()});
  BOOST_TEST(o.out.starts_with("rank 1 (process"), o.out);
  BOOST_TEST(has(o.out, "failed"), o.out);
}

// What blame says of a job once some rank waits.
Outcome once_waiting(const Folder& folder) {
  Outcome o;
  for (int i = 0; i < 300 && !has(o.out, "waiting in"); ++i) {
    sleep_ms(10);
    o = aliquot({"blame", folder.path(), "--ranks"});
  }
  return o;
}

BOOST_AUTO_TEST_CASE(a_stopped_rank_is_blamed_while_the_job_runs) {
  Folder folder;
  setenv("ALIQUOT_FAULT", "coll.issue@0=stop", 1);
  Process job({ALIQUOT_COMMAND, "run", "-n", "2", "--flight", folder.path(),
               "--grace", "0.1", "--", ABI_RANK});
  unsetenv("ALIQUOT_FAULT");
  Outcome o = once_waiting(folder);
  BOOST_TEST(o.code == 0);
  BOOST_TEST(o.out.starts_with("rank 0 is stopped before its first operation"),
             o.out);
  BOOST_TEST(has(o.out, "rank 1 was waiting in all_reduce #1"), o.out);
  BOOST_TEST(has(o.out, "rank 0: stopped"), o.out);
  BOOST_TEST(has(o.out, "rank 1: running"), o.out);
  sleep_ms(1500);  // that it hangs is told after a second
  job.signal(SIGTERM);
  o = job.finish();
  BOOST_TEST(!o.timed_out);
  BOOST_TEST(has(o.err, "aliquot run: rank 0 is stopped"), o.err);
}

// Whoever interrupts a job that hangs learns who held it up.
BOOST_AUTO_TEST_CASE(an_interrupted_job_says_who_did_not_come) {
  Folder folder;
  setenv("TMPDIR", folder.path().c_str(), 1);
  Process job({ALIQUOT_COMMAND, "run", "-n", "2", "--grace", "0.1", "--", "sh",
               "-c", "[ $RANK = 1 ] && export ALIQUOT_FAULT=$1; exec $0",
               ABI_RANK, "coll.issue@1=delay_ms/60000"});
  unsetenv("TMPDIR");
  sleep_ms(2500);
  job.signal(SIGINT);
  Outcome o = job.finish();
  BOOST_TEST(o.code == 128 + SIGINT);
  BOOST_TEST(has(o.err, "ending 2 ranks"), o.err);
  BOOST_TEST(has(o.err, "rank 1 has not called all_reduce #1"), o.err);
  BOOST_TEST(has(o.err, "rank 0 was waiting in all_reduce #1"), o.err);
}

// A rank that is only slower, so far, is not said to hold it up.
BOOST_AUTO_TEST_CASE(a_job_interrupted_in_a_short_wait_blames_nobody) {
  Folder folder;
  setenv("ALIQUOT_FAULT", "coll.issue@1=delay_ms/60000", 1);
  Process job({ALIQUOT_COMMAND, "run", "-n", "2", "--flight", folder.path(),
               "--grace", "0.1", "--", ABI_RANK});
  unsetenv("ALIQUOT_FAULT");
  Outcome o = once_waiting(folder);
  job.signal(SIGINT);
  BOOST_TEST(o.out.starts_with("rank 1 has not called all_reduce #1"), o.out);
  o = job.finish();
  BOOST_TEST(has(o.err, "ending 2 ranks"), o.err);
  BOOST_TEST(!has(o.err, "has not called"), o.err);
}

// Its own error, which names nobody.
BOOST_AUTO_TEST_CASE(a_rank_that_can_not_join_is_blamed_with_its_error) {
  Outcome o = aliquot({"run", "-n", "2", "--", "sh", "-c",
                       "[ $RANK = 1 ] && export ALIQUOT_FAULT=$1; exec $0",
                       ABI_RANK, "bootstrap.gather=error"});
  BOOST_TEST(o.code == 1);
  BOOST_TEST(has(o.err, "aliquot run: rank 1 (process"), o.err);
  BOOST_TEST(has(o.err, " failed before its first operation"), o.err);
  BOOST_TEST(has(o.err, "bootstrap.gather"), o.err);
}

BOOST_AUTO_TEST_CASE(a_rank_that_never_came_is_blamed_not_who_waited) {
  Outcome o = aliquot({"run", "-n", "2", "--", "sh", "-c",
                       "[ $RANK = 1 ] && exec sleep 60; "
                       "exec $0 400",
                       ABI_RANK});
  BOOST_TEST(o.code == 1);
  BOOST_TEST(has(o.err, "aliquot run: rank 1 left no record: "), o.err);
  BOOST_TEST(has(o.err, "missing rank 1 (never connected)"), o.err);
}

BOOST_AUTO_TEST_CASE(a_good_job_leaves_nothing_and_blames_nobody) {
  Folder folder;
  setenv("TMPDIR", folder.path().c_str(), 1);
  Outcome job = aliquot({"run", "-n", "2", "--", ABI_RANK});
  Outcome failed = aliquot({"run", "-n", "2", "--", "false"});
  unsetenv("TMPDIR");
  BOOST_TEST(job.code == 0);
  BOOST_TEST(failed.code == 1);
  BOOST_TEST(std::filesystem::is_empty(folder.path()));
  job = aliquot({"run", "-n", "2", "--flight", folder.path(), "--", ABI_RANK});
  BOOST_TEST(job.code == 0);
  Outcome o = aliquot({"blame", folder.path()});
  BOOST_TEST(o.code == 1);
  BOOST_TEST(has(o.out, "nobody failed"), o.out);
}

BOOST_AUTO_TEST_CASE(a_folder_without_records_is_a_wrong_call) {
  Folder folder;
  for (const std::string& path : {folder.path(), folder.path() + "/none"}) {
    Outcome o = aliquot({"blame", path});
    BOOST_TEST(o.code == 2);
    BOOST_TEST(has(o.err, "no rank-N.flight"), o.err);
  }
}

tools::FlightOp op(uint64_t number, uint32_t state) {
  tools::FlightOp o;
  o.number = o.order = number;
  o.state = state;
  o.group = "world";
  o.text = fmt::format("all_reduce #{}", number);
  o.members = {0, 1, 2};
  return o;
}

tools::FlightRank rank_of(int rank, uint64_t last, uint32_t state) {
  tools::FlightRank r;
  r.rank = rank;
  r.size = 3;
  r.ops.push_back(op(last, state));
  return r;
}

// Errors name a rank; how it ended is known to the launcher, if it saw that.
BOOST_AUTO_TEST_CASE(a_named_rank_ended_as_the_launcher_saw) {
  std::vector<tools::FlightRank> ranks = {rank_of(0, 5, kFlightError),
                                          rank_of(1, 5, kFlightArrived),
                                          rank_of(2, 5, kFlightError)};
  ranks[0].error_rank = ranks[2].error_rank = 1;
  ranks[0].error = "rank 1 died or exited without closing group \"world\"";
  auto sentence = [&](const tools::FirstGone& gone) {
    tools::Blame b = tools::blame(ranks, gone);
    BOOST_TEST((b.culprits == std::vector<int>{1}), b.sentence);
    return b.sentence;
  };
  const char* how = "was killed by signal 9 (Killed)";
  BOOST_TEST(has(sentence({1, how}), fmt::format("{} in all_reduce #5", how)));
  BOOST_TEST(has(sentence({2, how}), "rank 1 (process 0 on ) was lost in "));
  BOOST_TEST(has(sentence({}), "died without an error in all_reduce #5"));
  ranks[0].error = "group \"world\" was aborted by rank 1: no data";
  BOOST_TEST(has(sentence({1, how}), "gave up in all_reduce #5"));
}

// All were told to end: the one that others waited for began it.
BOOST_AUTO_TEST_CASE(of_several_that_are_gone_the_awaited_one_is_blamed) {
  auto waiting = kFlightArrived;
  tools::Blame b =
      tools::blame({rank_of(0, 5, waiting), rank_of(1, 4, kFlightDone),
                    rank_of(2, 5, waiting)});
  BOOST_TEST((b.culprits == std::vector<int>{1}), b.sentence);
  // Nothing in the records tells them apart, but the launcher knew.
  std::vector<tools::FlightRank> alike = {
      rank_of(0, 5, waiting), rank_of(1, 5, waiting), rank_of(2, 5, waiting)};
  b = tools::blame(alike, {2, "exited with code 1"});
  BOOST_TEST((b.culprits == std::vector<int>{2}));
  // By itself, so neither it nor those in the same operation are stuck in it.
  BOOST_TEST(b.sentence ==
             "rank 2 exited with code 1 while all_reduce #5 of group \"world\" "
             "was under way; what it wrote may say why");
  b = tools::blame(alike, {2, "was killed by signal 9 (Killed)"});
  BOOST_TEST(has(b.sentence, "ranks 0 and 1 were waiting in all_reduce #5"),
             b.sentence);
  BOOST_TEST((tools::blame(alike).culprits == std::vector<int>{0, 1, 2}));
}

// Of stopped ranks, those that others wait for; and the oldest wait counts.
BOOST_AUTO_TEST_CASE(who_holds_up_whom_is_told_from_the_oldest_wait) {
  std::vector<tools::FlightRank> ranks = {rank_of(0, 5, kFlightArrived),
                                          rank_of(1, 4, kFlightDone),
                                          rank_of(2, 5, kFlightArrived)};
  for (auto& rank : ranks) rank.alive = true;
  ranks[0].ops[0].issued_ns = 2000;
  ranks[2].ops[0].issued_ns = 1000;
  for (auto& rank : ranks) rank.stopped = rank.rank != 0;
  tools::Blame b = tools::blame(ranks);
  BOOST_TEST((b.culprits == std::vector<int>{1}), b.sentence);
  BOOST_TEST(b.sentence.starts_with("rank 1 is stopped after all_reduce #4"),
             b.sentence);
  BOOST_TEST(b.since_ns == 1000);
  // Two groups: one works, in the other rank 2 waits longer.
  for (auto& rank : ranks) rank.stopped = false;
  ranks[0].ops[0].members = {0, 1};
  ranks[2].ops[0].group = "other";
  ranks[2].ops[0].members = {2, 3};
  b = tools::blame(ranks);
  BOOST_TEST((b.culprits == std::vector<int>{3}), b.sentence);
  BOOST_TEST(b.since_ns == 1000);
  // Nobody waits.
  ranks[0].ops[0].state = ranks[2].ops[0].state = kFlightDone;
  ranks[1].alive = false;
  b = tools::blame(ranks);
  BOOST_TEST((b.culprits == std::vector<int>{1}), b.sentence);
  BOOST_TEST(b.since_ns == 0);
}

// Messages are numbered for themselves, and only the other end is awaited.
BOOST_AUTO_TEST_CASE(who_does_not_come_for_a_message_is_blamed) {
  std::vector<tools::FlightRank> ranks = {rank_of(0, 5, kFlightDone),
                                          rank_of(1, 5, kFlightDone),
                                          rank_of(2, 5, kFlightDone)};
  for (auto& rank : ranks) rank.alive = true;
  tools::FlightOp waits = op(1, kFlightIssued), sent = op(1, kFlightArrived);
  waits.text = "recv #1";
  waits.peer = 2;
  ranks[0].ops.push_back(waits);
  tools::Blame b = tools::blame(ranks);
  BOOST_TEST((b.culprits == std::vector<int>{2}), b.sentence);
  BOOST_TEST(has(b.sentence, "rank 2 has not called recv #1"), b.sentence);
  // To somebody else is not to this one, and a recv is no send.
  sent.peer = 1, sent.sends = true;
  ranks[2].ops.push_back(sent);
  sent.peer = 0, sent.sends = false;
  ranks[2].ops.push_back(sent);
  BOOST_TEST((tools::blame(ranks).culprits == std::vector<int>{2}));
  ranks[2].ops.back().sends = true;
  b = tools::blame(ranks);
  BOOST_TEST((b.culprits == std::vector<int>{1}), b.sentence);
}

BOOST_AUTO_TEST_CASE(errors_decide_by_votes_then_by_time) {
  std::vector<tools::FlightRank> ranks;
  for (int r = 0; r < 3; ++r) {
    ranks.push_back(rank_of(r, 5, kFlightError));
    ranks.back().ending = kFlightFailed;
    ranks.back().error = "late";
  }
  ranks[0].error_rank = 1, ranks[0].error_ns = 30;
  ranks[1].error_rank = 2, ranks[1].error_ns = 10;
  BOOST_TEST((tools::blame(ranks).culprits == std::vector<int>{2}));
  ranks[2].error_rank = 1, ranks[2].error_ns = 40;
  BOOST_TEST((tools::blame(ranks).culprits == std::vector<int>{1}));
  // Named, but it left no file.
  ranks.erase(ranks.begin() + 1);
  BOOST_TEST(has(tools::blame(ranks).sentence, "rank 1 left no record"));
}

BOOST_AUTO_TEST_CASE(a_pipe_in_the_place_of_a_note_is_not_waited_for) {
  Folder folder;
  BOOST_TEST(mkfifo((folder.path() + "/first-gone").c_str(), 0600) == 0);
  BOOST_TEST(tools::read_first_gone(folder.path()).rank == -1);
}

BOOST_AUTO_TEST_CASE(a_note_of_who_ended_first_is_kept) {
  Folder folder;
  BOOST_TEST(tools::read_first_gone(folder.path()).rank == -1);
  tools::write_first_gone(folder.path(),
                          {3, "was killed by signal 9 (Killed)"});
  tools::FirstGone gone = tools::read_first_gone(folder.path());
  BOOST_TEST(gone.rank == 3);
  BOOST_TEST(gone.how == "was killed by signal 9 (Killed)");
  for (const char* text : {"", "x", "-1 y", "99999 y", "1"}) {
    std::ofstream(folder.path() + "/first-gone") << text;
    gone = tools::read_first_gone(folder.path());
    BOOST_TEST(gone.rank == (*text == '1' ? 1 : -1));
    BOOST_TEST(gone.how == "");
  }
  std::ofstream(folder.path() + "/first-gone")
      << "1 " << std::string(500, 'a') << "\nrest";
  BOOST_TEST(tools::read_first_gone(folder.path()).how ==
             std::string(100, 'a'));
}

// Whatever a file holds, reading and judging it ends well.
BOOST_AUTO_TEST_CASE(garbage_is_read_without_harm) {
  Folder folder;
  Outcome job =
      aliquot({"run", "-n", "1", "--flight", folder.path(), "--", ABI_RANK});
  BOOST_REQUIRE(job.code == 0);
  std::string path = folder.path() + "/rank-0.flight";
  std::ifstream in(path, std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  BOOST_REQUIRE(setlocale(LC_CTYPE, "C.UTF-8") != nullptr);
  std::mt19937 random(7);
  int read = 0;
  for (int round = 0; round < 300; ++round) {
    std::string bytes = good;
    size_t changes = size_t{1} << (round % 16);
    size_t range = round % 2 == 0 ? bytes.size() : 20'000;
    for (size_t i = 0; i < changes; ++i) {
      bytes[8 + random() % (range - 8)] = static_cast<char>(random());
    }
    if (round % 10 == 0) bytes.resize(random() % bytes.size());
    tools::FlightRank rank;
    std::string why;
    bool ok = tools::read_flight(bytes, &rank, &why);
    BOOST_TEST(ok == why.empty());
    if (!ok) continue;
    ++read;
    const std::string sentence = tools::blame({rank, rank}).sentence;
    BOOST_TEST(!sentence.empty());
    BOOST_TEST((mbstowcs(nullptr, sentence.c_str(), 0) != size_t(-1)));
  }
  BOOST_TEST(read > 20);
  tools::FlightRank rank;
  std::string why;
  BOOST_TEST(!tools::read_flight("", &rank, &why));
  BOOST_TEST(
      !tools::read_flight(std::string(good.size(), '\xff'), &rank, &why));
  std::ofstream(path, std::ios::binary) << "short";
  std::filesystem::create_directory(folder.path() + "/rank-1.flight");
  // Nobody will ever write into it.
  BOOST_TEST(mkfifo((folder.path() + "/rank-2.flight").c_str(), 0600) == 0);
  Outcome o = aliquot({"blame", folder.path()});
  BOOST_TEST(o.code == 2);
  BOOST_TEST(has(o.err, "rank-0.flight"), o.err);
}

}  // namespace
}  // namespace aliquot::testing
