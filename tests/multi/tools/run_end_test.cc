// aliquot run: how jobs end.  Nothing may be left behind.
#include <signal.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>

#include "multi/tools/process.h"

namespace aliquot::testing {
namespace {

// Every rank prints its own process and that of a child of its own.
const char* const kWithChild = "sleep 300 & echo pids $$ $! ; wait";

Process start(const std::string& script, const std::string& ranks) {
  return Process({ALIQUOT_COMMAND, "run", "-n", ranks, "--no-prefix", "--grace",
                  "1", "--", "sh", "-c", script});
}

// After `ranks` lines of output: the processes in them.
std::vector<pid_t> pids_of(Process& job, size_t ranks, std::string* all) {
  for (size_t tries = 0; tries < 300 && count_of(*all, "pids") < ranks;
       ++tries) {
    job.wait_for_output(std::string(1000, '?'), 0.1);
    *all = job.output();
  }
  return numbers_in(*all);
}

BOOST_AUTO_TEST_CASE(a_failing_rank_ends_the_others_and_gives_its_code) {
  Outcome o = aliquot({"run", "-n", "4", "sh", "-c",
                       "if [ $RANK = 2 ]; then sleep 0.2; exit 7; fi; sleep "
                       "300"});
  BOOST_TEST(o.code == 7);
  BOOST_TEST(o.seconds < 30);
  BOOST_TEST(o.err.find("rank 2 exited with code 7; ending 3 others") !=
                 std::string::npos,
             o.err);
}

BOOST_AUTO_TEST_CASE(a_killed_rank_is_reported_with_its_signal) {
  Outcome o = aliquot({"run", "-n", "3", "sh", "-c",
                       "if [ $RANK = 1 ]; then kill -SEGV $$; fi; sleep 300"});
  BOOST_TEST(o.code == 128 + SIGSEGV);
  BOOST_TEST(o.seconds < 30);
  BOOST_TEST(o.err.find("rank 1 was killed by signal 11") != std::string::npos,
             o.err);
}

// The others give up, by an exit or by abort(), when they miss it; that may be
// seen first.
BOOST_AUTO_TEST_CASE(who_was_killed_goes_before_who_gave_up) {
  const std::string killed =
      "go=$ALIQUOT_FLIGHT_DIR/go; [ $RANK = 1 ] || { touch $go; ";
  for (const std::string end : {"exit 3", "kill -ABRT $$"}) {
    Outcome o = start(killed + end + "; }; while [ ! -e $go ]; do :; done; " +
                          "kill -KILL $$",
                      "2")
                    .finish();
    BOOST_TEST(o.code == 128 + SIGKILL, end << ": " << o.err);
    BOOST_TEST(o.err.find("rank 1 was killed by signal 9") != std::string::npos,
               o.err);
  }
  // Nobody was killed: the first, here before it is missed.
  Outcome o = start(
                  "pid=$ALIQUOT_FLIGHT_DIR/pid; [ $RANK = 1 ] && "
                  "{ echo $$ > $pid.new; mv $pid.new $pid; exit 3; }; "
                  "while [ ! -e $pid ]; do :; done; "
                  "while kill -0 $(cat $pid) 2> /dev/null; do :; done; "
                  "kill -ABRT $$",
                  "2")
                  .finish();
  BOOST_TEST(o.code == 3, o.err);
}

BOOST_AUTO_TEST_CASE(a_rank_that_ends_well_does_not_end_the_others) {
  Outcome o = aliquot({"run", "-n", "2", "sh", "-c",
                       "if [ $RANK = 1 ]; then sleep 0.5; echo late; fi"});
  BOOST_TEST(o.code == 0);
  BOOST_TEST(o.out == "[1] late\n");
  BOOST_TEST(o.err.empty());
}

BOOST_AUTO_TEST_CASE(a_rank_that_ignores_sigterm_is_killed_after_the_grace) {
  Outcome o = aliquot({"run", "-n", "2", "--grace", "0.5", "sh", "-c",
                       "trap '' TERM; if [ $RANK = 0 ]; then sleep 0.3; exit "
                       "3; fi; while true; do sleep 0.1; done"});
  BOOST_TEST(o.code == 3);
  BOOST_TEST(o.seconds < 30);
  BOOST_TEST(o.err.find("still there after 0.5 s") != std::string::npos, o.err);
}

BOOST_AUTO_TEST_CASE(what_a_rank_started_ends_with_the_job) {
  Process job = start(std::string("if [ $RANK = 1 ]; then sleep 1; exit 4; fi;"
                                  " ") +
                          kWithChild,
                      "3");
  std::string text;
  std::vector<pid_t> pids = pids_of(job, 2, &text);
  BOOST_TEST(pids.size() == 4u);
  BOOST_TEST(job.finish().code == 4);
  BOOST_TEST(all_gone_within(pids, 10));
}

BOOST_AUTO_TEST_CASE(a_killed_launcher_leaves_no_orphans) {
  Process job = start(kWithChild, "3");
  std::string text;
  std::vector<pid_t> pids = pids_of(job, 3, &text);
  BOOST_TEST(pids.size() == 6u);
  for (pid_t pid : pids) BOOST_TEST(!is_gone(pid));
  job.signal(SIGKILL);
  BOOST_TEST(job.finish().code == 128 + SIGKILL);
  BOOST_TEST(all_gone_within(pids, 10));
}

BOOST_AUTO_TEST_CASE(a_killed_launcher_leaves_no_folder) {
  Process job = start("echo folder $ALIQUOT_FLIGHT_DIR.; sleep 100", "1");
  BOOST_TEST(job.wait_for_output("\n"));
  job.signal(SIGKILL);
  const std::string out = job.finish().out;
  const size_t at = out.find('/');
  BOOST_REQUIRE(at != std::string::npos);
  const std::string folder = out.substr(at, out.find('.', at) - at);
  bool gone = false;
  for (int i = 0; i < 1000 && !gone; ++i) {
    gone = !std::filesystem::exists(folder);
    if (!gone) sleep_ms(10);
  }
  BOOST_TEST(gone, folder);
}

BOOST_AUTO_TEST_CASE(signals_reach_the_ranks) {
  for (int number : {SIGINT, SIGTERM}) {
    Process job = start(
        "trap 'echo got int; exit 5' INT; trap 'echo got term; exit 5' TERM; "
        "echo ready; while true; do sleep 0.05; done",
        "2");
    BOOST_TEST(job.wait_for_output("ready\nready\n"));
    job.signal(number);
    Outcome o = job.finish();
    BOOST_TEST(o.code == 128 + number);
    BOOST_TEST(o.seconds < 30);
    const char* expected = number == SIGINT ? "got int" : "got term";
    BOOST_TEST(count_of(o.out, expected) == 2u, o.out);
  }
}

BOOST_AUTO_TEST_CASE(a_second_signal_does_not_wait) {
  Process job({ALIQUOT_COMMAND, "run", "-n", "2", "--no-prefix", "--grace",
               "300", "--", "sh", "-c",
               "trap '' INT TERM; echo ready; while true; do sleep 0.05; "
               "done"});
  BOOST_TEST(job.wait_for_output("ready\nready\n"));
  job.signal(SIGINT);
  sleep_ms(300);
  job.signal(SIGINT);
  Outcome o = job.finish();
  BOOST_TEST(o.code == 128 + SIGINT);
  BOOST_TEST(o.seconds < 60);
}

BOOST_AUTO_TEST_CASE(a_reader_that_goes_away_ends_the_job) {
  Process job({"/bin/sh", "-c",
               std::string(ALIQUOT_COMMAND) +
                   " run -n 2 -- sh -c 'while true; do echo x; done' | head -1"
                   " >/dev/null; echo done"});
  Outcome o = job.finish();
  BOOST_TEST(!o.timed_out);
  BOOST_TEST(o.out == "done\n");
}

// Nobody reads its output, and there is no end of it.
BOOST_AUTO_TEST_CASE(a_signal_is_heard_while_the_reader_sleeps) {
  Process job({ALIQUOT_COMMAND, "run", "-n", "2", "--grace", "1", "--", "sh",
               "-c", "while true; do echo x; done"});
  BOOST_TEST(job.wait_for_output("x\n"));
  sleep_ms(500);  // the pipe is full
  job.signal(SIGTERM);
  BOOST_TEST(all_gone_within({job.pid()}, 20));
}

// It is not of the rank's process group, so it outlives the job by a moment.
BOOST_AUTO_TEST_CASE(output_without_end_of_a_daemon_does_not_hold_the_job) {
  Process job({ALIQUOT_COMMAND, "run", "-n", "1", "--", "sh", "-c",
               "setsid cat /dev/zero & sleep 0.5"});
  Outcome o = job.finish(30);
  BOOST_TEST(!o.timed_out);
  BOOST_TEST(o.code == 0);
}

// Some parents ignore the end of children, or close standard files.
BOOST_AUTO_TEST_CASE(what_a_parent_left_odd_does_not_hold_the_job) {
  struct sigaction old = {}, ignore = {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGCHLD, &ignore, &old);
  Process job({ALIQUOT_COMMAND, "run", "-n", "2", "--", "sh", "-c",
               "echo here; exit 4"});
  sigaction(SIGCHLD, &old, nullptr);
  Outcome o = job.finish(20);
  BOOST_TEST(!o.timed_out);
  BOOST_TEST(o.code == 4);
  BOOST_TEST(o.out.find("here") != std::string::npos);
  Process closed({"/bin/sh", "-c",
                  std::string("exec ") + ALIQUOT_COMMAND +
                      " run -n 2 -- sh -c 'echo here; exit 5' <&- >&- 2>&-"});
  o = closed.finish(20);
  BOOST_TEST(!o.timed_out);
  BOOST_TEST(o.code == 5);
}

}  // namespace
}  // namespace aliquot::testing
