// aliquot run: what ranks are given and how their output comes out.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <set>

#include "multi/tools/process.h"

namespace aliquot::testing {
namespace {

BOOST_AUTO_TEST_CASE(ranks_get_their_variables) {
  unsetenv("OMP_NUM_THREADS");
  setenv("TORCHELASTIC_RUN_ID", "outer", 1);
  Outcome o = aliquot(
      {"run", "-n", "3", "--", "sh", "-c",
       "echo R $ALIQUOT_RANK $ALIQUOT_LOCAL_RANK $RANK $LOCAL_RANK; "
       "echo W $ALIQUOT_WORLD_SIZE $ALIQUOT_LOCAL_SIZE $WORLD_SIZE "
       "$LOCAL_WORLD_SIZE; echo O $OMP_NUM_THREADS T-$TORCHELASTIC_RUN_ID-; "
       "echo M $MASTER_ADDR; echo S $ALIQUOT_STORE $ALIQUOT_SECRET"});
  unsetenv("TORCHELASTIC_RUN_ID");
  BOOST_TEST(o.code == 0);
  for (const char* line :
       {"[0] R 0 0 0 0\n", "[1] R 1 1 1 1\n", "[2] R 2 2 2 2\n"}) {
    BOOST_TEST(count_of(o.out, line) == 1u, line << o.out);
  }
  BOOST_TEST(count_of(o.out, "W 3 3 3 3\n") == 3u);
  BOOST_TEST(count_of(o.out, "O 1 T--\n") == 3u);
  BOOST_TEST(count_of(o.out, "M 127.0.0.1\n") == 3u);
  BOOST_TEST(count_of(o.out, "S 127.0.0.1:") == 3u);
  std::set<std::string> secrets;
  for (size_t at = 0; (at = o.out.find("S 127", at)) != std::string::npos;) {
    size_t space = o.out.find(' ', at + 2);
    secrets.insert(o.out.substr(space + 1, 64));
    at = space;
  }
  BOOST_TEST(secrets.size() == 1u);  // one job, one secret
  BOOST_TEST(secrets.begin()->find_first_not_of("0123456789abcdef") ==
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(threads_per_rank_are_left_alone_when_set) {
  setenv("OMP_NUM_THREADS", "5", 1);
  Outcome o = aliquot({"run", "-n", "1", "sh", "-c", "echo $OMP_NUM_THREADS"});
  unsetenv("OMP_NUM_THREADS");
  BOOST_TEST(o.out == "[0] 5\n");
}

BOOST_AUTO_TEST_CASE(ranks_really_train_together) {
  Outcome o = aliquot({"run", "-n", "4", "--", ABI_RANK});
  BOOST_TEST(o.code == 0, o.err);
  BOOST_TEST(count_of(o.out, "of 4: 10\n") == 4u, o.out);
}

// A port that is taken, as by torchrun's own store, by someone who never
// speaks.
class SilentListener {
 public:
  explicit SilentListener(int port)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in a = {};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons(static_cast<uint16_t>(port));
    socklen_t bytes = sizeof a;
    auto* address = reinterpret_cast<sockaddr*>(&a);
    if (bind(fd_, address, bytes) == 0 && listen(fd_, 8) == 0 &&
        getsockname(fd_, address, &bytes) == 0) {
      port_ = ntohs(a.sin_port);
    }
  }
  SilentListener(const SilentListener&) = delete;
  SilentListener& operator=(const SilentListener&) = delete;
  ~SilentListener() { close(fd_); }
  int port() const { return port_; }

 private:
  const int fd_;
  int port_ = 0;
};

BOOST_AUTO_TEST_CASE(torchruns_variables_suffice_beside_its_store) {
  SilentListener agent(0);
  SilentListener stranger(agent.port() + 1);
  auto rank = [&](int r) {
    return Process(
        {"/bin/sh", "-c",
         "export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=host "
         "TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RUN_ID=j "
         "MASTER_PORT=" +
             std::to_string(agent.port()) + " RANK=" + std::to_string(r) +
             " LOCAL_RANK=" + std::to_string(r) + "; exec " + ABI_RANK});
  };
  Process one = rank(1), zero = rank(0);
  for (Process* p : {&one, &zero}) {
    Outcome o = p->finish();
    BOOST_TEST(o.code == 0, o.err);
    BOOST_TEST(count_of(o.out, "of 2: 3\n") == 1u, o.out);
  }
}

BOOST_AUTO_TEST_CASE(lines_stay_whole_and_streams_apart) {
  Outcome o = aliquot({"run", "-n", "3", "--", "sh", "-c",
                       "for i in 1 2 3 4 5 6 7 8 9; do printf 'a'; printf "
                       "'b%d\\n' $i; echo c$i >&2; done; printf end"});
  BOOST_TEST(o.code == 0);
  for (int r = 0; r < 3; ++r) {
    std::string prefix = "[" + std::to_string(r) + "] ";
    for (int i = 1; i < 10; ++i) {
      std::string number = std::to_string(i);
      BOOST_TEST(count_of(o.out, prefix + "ab" + number + "\n") == 1u);
      BOOST_TEST(count_of(o.err, prefix + "c" + number + "\n") == 1u);
    }
    // A last line without a newline is not lost.
    BOOST_TEST(count_of(o.out, prefix + "end\n") == 1u);
  }
  BOOST_TEST(count_of(o.out, "\n") == 30u);
}

BOOST_AUTO_TEST_CASE(prefixes_are_aligned) {
  Outcome o = aliquot({"run", "-n", "11", "echo", "x"});
  BOOST_TEST(count_of(o.out, "[ 3] x\n") == 1u, o.out);
  BOOST_TEST(count_of(o.out, "[10] x\n") == 1u, o.out);
}

BOOST_AUTO_TEST_CASE(output_may_be_plain_or_rank_0_only) {
  Outcome o =
      aliquot({"run", "-n", "2", "--no-prefix", "sh", "-c", "echo r$RANK"});
  BOOST_TEST(o.out.size() == 6u);
  BOOST_TEST(count_of(o.out, "[") == 0u);
  o = aliquot({"run", "-n", "2", "--output", "rank0", "sh", "-c",
               "echo r$RANK; echo e$RANK >&2"});
  BOOST_TEST(o.out == "r0\n");
  // Why another rank fails must not be lost.
  BOOST_TEST(count_of(o.err, "e0\n") == 1u, o.err);
  BOOST_TEST(count_of(o.err, "[1] e1\n") == 1u, o.err);
}

BOOST_AUTO_TEST_CASE(a_progress_bar_in_a_file_leaves_its_last_state) {
  Outcome o = aliquot({"run", "-n", "1", "sh", "-c",
                       "printf '\\r10%%'; printf '\\r50%%'; printf "
                       "'\\r100%%\\n'; printf 'crlf\\r\\n'"});
  BOOST_TEST(o.out == "[0] 100%\n[0] crlf\n");
}

BOOST_AUTO_TEST_CASE(standard_input_goes_to_rank_0) {
  Outcome o = aliquot({"run", "-n", "2", "cat"}, "hello\n");
  BOOST_TEST(o.code == 0);
  BOOST_TEST(o.out == "[0] hello\n");
}

BOOST_AUTO_TEST_CASE(the_command_keeps_its_own_options) {
  Outcome o = aliquot({"run", "-n", "1", "--", "echo", "-n", "--", "--json"});
  BOOST_TEST(o.out == "[0] -- --json\n");
  o = aliquot({"run", "-n", "1", "echo", "-n", "7", "--", "x"});
  BOOST_TEST(o.out == "[0] 7 -- x\n");
}

BOOST_AUTO_TEST_CASE(wrong_command_lines_are_explained) {
  struct Case {
    std::vector<std::string> arguments;
    const char* says;
  };
  for (const Case& c :
       {Case{{"run"}, "ranks is missing"},
        Case{{"run", "-n", "0", "true"}, "1 to 64"},
        Case{{"run", "-n", "x", "true"}, "x"},
        Case{{"run", "-n", "2"}, "aliquot run -n 4 -- ./train"},
        Case{{"run", "-n", "2", "--bogus", "true"}, "--bogus"},
        Case{{"run", "--bogus", "true"}, "unknown option --bogus"},
        Case{{"run", "--", "true"}, "aliquot run -n 4 --"},
        Case{{"run", "-n", "2", "--output", "z", "true"}, "z"},
        Case{{}, "needs a command"}, Case{{"fly"}, "fly"},
        Case{{"--fly"}, "no option \"--fly\"; it has: run"},
        Case{{"bench"}, "aliquot bench needs a command; it has: coll call"},
        Case{{"bench", "joins"}, "no command \"joins\"; it has: coll call"},
        Case{{"bench", "coll", "--sizes", "4X"}, "4K"},
        Case{{"bench", "coll", "--ops", "sum"}, "sum"}}) {
    Outcome o = aliquot(c.arguments);
    BOOST_TEST(o.code == 2);
    BOOST_TEST(o.err.find(c.says) != std::string::npos, o.err);
    BOOST_TEST(o.err.find("--help") != std::string::npos, o.err);
  }
}

BOOST_AUTO_TEST_CASE(a_command_that_cannot_start_says_why) {
  Outcome o = aliquot({"run", "-n", "3", "no-such-program"});
  BOOST_TEST(o.code == 127);
  BOOST_TEST(o.err.find("no-such-program") != std::string::npos);
  o = aliquot({"run", "-n", "3", "/etc"});
  BOOST_TEST(o.code == 126);
}

}  // namespace
}  // namespace aliquot::testing
