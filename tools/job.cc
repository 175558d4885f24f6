#include "tools/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "tools/flight_read.h"
#include "tools/net.h"

namespace aliquot::tools {
namespace {

// Rank 0 takes the first free one of these, so that nobody can take it first.
constexpr int kStorePorts = 16;
// After a rank exits with an error one that was killed may still be seen.
constexpr int64_t kSettleMs = 100;

int64_t now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000 + t.tv_nsec / 1'000'000;
}

winsize terminal_size() {
  winsize size = {};
  if (ioctl(1, TIOCGWINSZ, &size) != 0) ioctl(2, TIOCGWINSZ, &size);
  return size;
}

std::string prefix_of(int rank, int ranks) {
  size_t width = fmt::formatted_size("{}", ranks - 1);
  return fmt::format("[{:>{}}] ", rank, width);
}

// A terminal that passes bytes as they are.
bool open_terminal(winsize size, int* parent, int* child) {
  termios raw = {};
  cfmakeraw(&raw);
  return openpty(parent, child, nullptr, &raw, &size) == 0;
}

void close_on_exec(int fd) { fcntl(fd, F_SETFD, FD_CLOEXEC); }

}  // namespace

Job::Job(JobOptions options)
    : options_(std::move(options)),
      terminal_(isatty(1) != 0 && isatty(2) != 0),
      merger_(terminal_),
      ranks_(static_cast<size_t>(options_.ranks)) {}

Job::~Job() {
  for (Pipe& pipe : pipes_) {
    if (pipe.fd >= 0) close(pipe.fd);
  }
  if (own_flight_) {
    std::error_code ignored;
    std::filesystem::remove_all(flight_, ignored);
  }
  if (signal_fd_ >= 0) close(signal_fd_);
  if (end_fd_ >= 0) close(end_fd_);
  if (null_fd_ >= 0) close(null_fd_);
}

int Job::run() {
  if (!prepare()) return 1;
  for (int r = 0; r < options_.ranks && !ending_; ++r) {
    if (!start_rank(r)) end_all(SIGKILL);
  }
  loop();
  drain();
  tell_flight();
  return code_;
}

bool Job::prepare() {
  sigset_t set;
  sigemptyset(&set);
  for (int s : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD, SIGWINCH}) {
    sigaddset(&set, s);
  }
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal_fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  sigdelset(&set, SIGCHLD);
  sigdelset(&set, SIGWINCH);
  end_fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  merger_.hurry_at(end_fd_);
  null_fd_ = open("/dev/null", O_RDWR | O_CLOEXEC);
  int store = free_loopback_port(), master = free_loopback_port();
  if (!make_flight_folder()) return false;
  if (signal_fd_ < 0 || end_fd_ < 0 || null_fd_ < 0 || store == 0 ||
      master == 0 || !keeper_.start(own_flight_ ? flight_ : "")) {
    merger_.say(fmt::format("aliquot run: cannot prepare the job: {}",
                            std::strerror(errno)));
    return false;
  }
  int last = std::min(store + kStorePorts - 1, 65535);
  shared_ = {{"ALIQUOT_WORLD_SIZE", fmt::format("{}", options_.ranks)},
             {"ALIQUOT_LOCAL_SIZE", fmt::format("{}", options_.ranks)},
             {"ALIQUOT_STORE", fmt::format("127.0.0.1:{}-{}", store, last)},
             {"ALIQUOT_SECRET", random_secret()},
             {"WORLD_SIZE", fmt::format("{}", options_.ranks)},
             {"LOCAL_WORLD_SIZE", fmt::format("{}", options_.ranks)},
             {"MASTER_ADDR", "127.0.0.1"},
             {"MASTER_PORT", fmt::format("{}", master)}};
  if (!flight_.empty()) shared_.emplace_back("ALIQUOT_FLIGHT_DIR", flight_);
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    shared_.emplace_back("OMP_NUM_THREADS", "1");
  }
  return true;
}

std::vector<std::pair<std::string, std::string>> Job::variables(
    int rank) const {
  auto out = shared_;
  std::string text = fmt::format("{}", rank);
  for (const char* name :
       {"ALIQUOT_RANK", "ALIQUOT_LOCAL_RANK", "RANK", "LOCAL_RANK"}) {
    out.emplace_back(name, text);
  }
  winsize size = terminal_size();
  if (terminal_ && size.ws_col > 20) {
    size_t prefix = options_.output == Output::kPrefixed
                        ? prefix_of(rank, options_.ranks).size()
                        : 0;
    out.emplace_back("COLUMNS", fmt::format("{}", size.ws_col - prefix));
  }
  return out;
}

int Job::open_output(int rank, int fd) {
  if (options_.output == Output::kPlain) return -1;
  if (options_.output == Output::kRank0) {
    if (rank == 0) return -1;
    if (fd == STDOUT_FILENO) return null_fd_;  // why a rank fails is shown
  }
  Pipe pipe;
  pipe.lines.prefix = prefix_of(rank, options_.ranks);
  pipe.lines.fd = fd;
  int child = -1;
  winsize size = terminal_size();
  if (size.ws_col > 20) {
    size.ws_col =
        static_cast<unsigned short>(size.ws_col - pipe.lines.prefix.size());
  }
  // Rank 0 may draw a progress bar as if it wrote to the terminal itself.
  bool as_terminal = terminal_ && rank == 0;
  if (!as_terminal || !open_terminal(size, &pipe.fd, &child)) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return -1;
    pipe.fd = ends[0], child = ends[1];
  }
  close_on_exec(pipe.fd);
  close_on_exec(child);
  fcntl(pipe.fd, F_SETFL, O_NONBLOCK);
  pipes_.push_back(std::move(pipe));
  return child;
}

bool Job::start_rank(int rank) {
  ChildSpec spec;
  spec.command = options_.command;
  spec.environment = variables(rank);
  // Variables of a torchrun around us would contradict ours.
  spec.removed_prefixes = {"TORCHELASTIC_", "GROUP_RANK=", "ROLE_RANK="};
  bool stdin_is_useful = rank == 0 && isatty(0) == 0;
  spec.in = stdin_is_useful ? -1 : null_fd_;
  spec.out = open_output(rank, 1);
  spec.err = open_output(rank, 2);
  StartedChild child = start_child(spec);
  for (int fd : {spec.out, spec.err}) {
    if (fd >= 0 && fd != null_fd_) close(fd);
  }
  if (child.error != 0) {
    merger_.say(fmt::format("aliquot run: cannot start \"{}\": {}",
                            options_.command[0], std::strerror(child.error)));
    code_ = child.error == ENOENT ? 127 : 126;
    return false;
  }
  ranks_[static_cast<size_t>(rank)].pid = child.pid;
  keeper_.add(child.pid);
  return true;
}

int Job::running() const {
  return static_cast<int>(std::count_if(
      ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.pid > 0; }));
}

void Job::loop() {
  std::vector<pollfd> polls;
  std::vector<Pipe*> sources;
  while (running() > 0) {
    polls.assign(1, {signal_fd_, POLLIN, 0});
    sources.assign(1, nullptr);
    for (Pipe& pipe : pipes_) {
      if (pipe.fd < 0) continue;
      polls.push_back({pipe.fd, POLLIN, 0});
      sources.push_back(&pipe);
    }
    poll(polls.data(), polls.size(), poll_timeout());
    for (size_t i = 1; i < polls.size(); ++i) {
      if (polls[i].revents != 0) on_output(*sources[i]);
    }
    on_signal();
    reap();
    if (merger_.broken() && !ending_) forward(SIGPIPE);
    kill_late();
  }
}

int Job::poll_timeout() const {
  const int64_t next = ending_ ? kill_at_ : decide_at_;
  if (next == 0) return 1000;
  return static_cast<int>(std::clamp<int64_t>(next - now_ms(), 0, 1000));
}

void Job::on_output(Pipe& pipe) {
  char buffer[65536];
  // A few reads only: a rank that writes without end does not starve others.
  for (int i = 0; i < 4; ++i) {
    ssize_t n = read(pipe.fd, buffer, sizeof buffer);
    if (n > 0) {
      merger_.feed(pipe.lines, {buffer, static_cast<size_t>(n)});
      continue;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    // The end; a terminal reports it as EIO.
    merger_.finish(pipe.lines);
    close(pipe.fd);
    pipe.fd = -1;
    return;
  }
}

void Job::on_signal() {
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof info) == sizeof info) {
    int number = static_cast<int>(info.ssi_signo);
    if (number == SIGWINCH) {
      winsize size = terminal_size();
      for (Pipe& pipe : pipes_) {
        if (pipe.fd < 0 || isatty(pipe.fd) == 0) continue;
        winsize own = size;
        size_t prefix = pipe.lines.prefix.size();
        if (own.ws_col > 20) {
          own.ws_col = static_cast<unsigned short>(own.ws_col - prefix);
        }
        ioctl(pipe.fd, TIOCSWINSZ, &own);
      }
    } else if (number != SIGCHLD) {
      forward(number);
    }
  }
}

// A signal to the launcher is for all ranks; the second one does not wait.
void Job::forward(int number) {
  if (ending_) return end_all(SIGKILL);
  if (code_ == 0) code_ = 128 + number;
  merger_.say(fmt::format("aliquot run: {}; ending {} ranks", strsignal(number),
                          running()));
  tell_hang();
  end_all(number == SIGPIPE || number == SIGHUP ? SIGTERM : number);
}

void Job::end_all(int number) {
  ending_ = true;
  for (const Rank& rank : ranks_) {
    if (rank.pid > 0) kill(-rank.pid, number);
  }
  kill_at_ = number == SIGKILL
                 ? 0
                 : now_ms() + static_cast<int64_t>(options_.grace_s * 1000);
}

void Job::kill_late() {
  if (kill_at_ == 0 || now_ms() < kill_at_) return;
  merger_.say(
      fmt::format("aliquot run: {} ranks are still there after {} s; "
                  "killing them",
                  running(), options_.grace_s));
  end_all(SIGKILL);
}

void Job::reap() {
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].pid < 0) continue;
    siginfo_t info = {};
    id_t id = static_cast<id_t>(ranks_[r].pid);
    // Not reaped yet: its number stays ours while we end what it started.
    if (waitid(P_PID, id, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0) {
      continue;
    }
    kill(-ranks_[r].pid, SIGKILL);
    waitid(P_PID, id, &info, WEXITED);
    keeper_.remove(ranks_[r].pid);
    ranks_[r].pid = -1;
    if (info.si_code == CLD_EXITED && info.si_status == 0) continue;
    note_end({static_cast<int>(r), info.si_code, info.si_status});
  }
  decide();
}

// Who was killed is likelier the cause than who gave up, which may be seen
// first: to take down a process takes longer than to miss it.
void Job::note_end(const End& end) {
  if (ending_) return;  // it was told to end
  if (first_end_.rank < 0) decide_at_ = now_ms() + kSettleMs;
  if (first_end_.rank < 0 || (first_end_.gave_up() && !end.gave_up())) {
    first_end_ = end;
  }
}

void Job::decide() {
  if (ending_ || first_end_.rank < 0) return;
  if (first_end_.gave_up() && running() > 0 && now_ms() < decide_at_) return;
  const bool exited = first_end_.how == CLD_EXITED;
  const int rank = failed_rank_ = first_end_.rank;
  const int status = first_end_.status;
  code_ = exited ? status : 128 + status;
  std::string what = exited ? fmt::format("exited with code {}", status)
                            : fmt::format("was killed by signal {} ({})",
                                          status, strsignal(status));
  if (!flight_.empty()) write_first_gone(flight_, {rank, what});
  int others = running();
  merger_.say(fmt::format(
      "aliquot run: rank {} {}{}", rank, what,
      others > 0
          ? fmt::format("; ending {} other{}", others, others == 1 ? "" : "s")
          : ""));
  end_all(SIGTERM);
}

// What ranks wrote before they ended.
void Job::drain() {
  int64_t until = now_ms() + 500;
  for (Pipe& pipe : pipes_) {
    while (pipe.fd >= 0) {
      pollfd p = {pipe.fd, POLLIN, 0};
      int64_t left = until - now_ms();
      // What a rank left running may write without end.
      if (left < 0 || poll(&p, 1, static_cast<int>(left)) <= 0) break;
      on_output(pipe);
    }
    merger_.finish(pipe.lines);
  }
}

}  // namespace aliquot::tools
