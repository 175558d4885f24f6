// A job of `aliquot run`: N ranks on this host, started, watched and ended
// together.  One thread, one poll loop; signals arrive through a signalfd.
#pragma once

#include <signal.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tools/child.h"
#include "tools/keeper.h"
#include "tools/lines.h"

namespace aliquot::tools {

enum class Output {
  kPrefixed,  // every rank's lines, "[rank] " before each
  kPlain,     // inherited as it is
  kRank0,     // rank 0's as it is, of the others only standard error
};

struct JobOptions {
  int ranks = 1;
  std::vector<std::string> command;
  Output output = Output::kPrefixed;
  double grace_s = 5;  // from SIGTERM to SIGKILL
  // Where ranks keep their flight records; "": a folder of the job's own, which
  // is read if the job fails and then removed.
  std::string flight;
};

class Job {
 public:
  explicit Job(JobOptions options);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // The exit code: 0; the first failing rank's code, or 128 + its signal; 128 +
  // the signal that ended the job; 126 or 127 when the command cannot start.
  int run();

 private:
  struct Pipe {
    int fd = -1;  // read end, -1 after its end
    LineStream lines;
  };
  struct Rank {
    pid_t pid = -1;  // also its process group; -1 once it has ended
  };
  struct End {  // of a rank that failed, as waitid() says it
    int rank = -1, how = 0, status = 0;
    // By itself, maybe for what became of another rank.
    bool gave_up() const { return how == CLD_EXITED || status == SIGABRT; }
  };

  bool prepare();
  bool start_rank(int rank);
  std::vector<std::pair<std::string, std::string>> variables(int rank) const;
  int open_output(int rank, int fd);  // the child's end, -1 to inherit
  void loop();
  int poll_timeout() const;
  void on_signal();
  void forward(int signal);
  void on_output(Pipe& pipe);
  void reap();
  void note_end(const End& end);
  void decide();
  void end_all(int signal);
  void kill_late();
  void drain();
  bool make_flight_folder();
  void tell_flight();
  void tell_hang();
  int running() const;

  const JobOptions options_;
  const bool terminal_;
  LineMerger merger_;
  Keeper keeper_;
  std::vector<Rank> ranks_;
  std::deque<Pipe> pipes_;                                   // addresses stay
  std::vector<std::pair<std::string, std::string>> shared_;  // variables
  int signal_fd_ = -1, null_fd_ = -1;
  int end_fd_ = -1;          // readable while a signal to end waits to be taken
  std::string flight_;       // the folder in use
  bool own_flight_ = false;  // to be removed
  int code_ = 0;
  End first_end_;          // the likeliest cause so far
  int64_t decide_at_ = 0;  // 0: none has failed
  int failed_rank_ = -1;
  bool ending_ = false;
  int64_t kill_at_ = 0;  // 0: not set
};

}  // namespace aliquot::tools
