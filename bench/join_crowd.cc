#include "bench/join_crowd.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "comm/bootstrap/bootstrap.h"
#include "comm/bootstrap/socket.h"

namespace {

struct Counts {
  std::atomic<int64_t> messages{0}, bytes{0}, calls{0};
};
// Of this process's side; null: nobody counts.
Counts* counts = nullptr;
// The last send on a descriptor left something for the next one.
constexpr int kDescriptors = 4096;
std::array<std::atomic<bool>, kDescriptors> unfinished;

}  // namespace

// In place of the C library's for this whole program.
extern "C" ssize_t send(int fd, const void* data, size_t bytes, int flags) {
  ssize_t n = syscall(SYS_sendto, fd, data, bytes, flags, nullptr, 0);
  if (counts == nullptr || fd < 0 || fd >= kDescriptors) return n;
  ++counts->calls;
  auto& rest = unfinished[static_cast<size_t>(fd)];
  if (!rest.load()) ++counts->messages;
  rest.store(n != static_cast<ssize_t>(bytes));
  if (n > 0) counts->bytes += n;
  return n;
}

extern "C" ssize_t recv(int fd, void* data, size_t bytes, int flags) {
  if (counts != nullptr) ++counts->calls;
  return syscall(SYS_recvfrom, fd, data, bytes, flags, nullptr, nullptr);
}

namespace aliquot::bench {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr size_t kBareBytes = 64;

// Shared with the children.
struct Board {
  Counts server, clients;
  std::atomic<int32_t> ready{0}, finished{0};
  std::atomic<int64_t> last_end{0};
  std::atomic<bool> failed{false};
  char error[512];

  void fail(const std::string& text) {
    if (failed.exchange(true)) return;
    text.copy(error, sizeof error - 1);
  }
  void end(const Status& status) {
    if (!status.ok()) fail(status.message());
    int64_t now = now_ns(), last = last_end.load();
    while (last < now && !last_end.compare_exchange_weak(last, now)) {
    }
    ++finished;
  }
};

// Children wait for the end of a pipe that only the parent holds open.
struct Gate {
  int ends[2] = {-1, -1};
  Gate() {
    if (pipe2(ends, O_CLOEXEC) != 0) ends[0] = ends[1] = -1;
  }
  ~Gate() {
    open();
    close(ends[0]);
  }
  void open() {
    if (ends[1] >= 0) close(ends[1]);
    ends[1] = -1;
  }
  void wait() const {
    char byte;
    while (read(ends[0], &byte, 1) < 0 && errno == EINTR) {
    }
  }
};

using Part = std::function<Status(int32_t rank)>;

class Stage {
 public:
  Stage(const Crowd& crowd, Board* board) : crowd_(crowd), board_(board) {}
  ~Stage() {
    for (pid_t pid : children_) kill(pid, SIGKILL);
    for (pid_t pid : children_) waitpid(pid, nullptr, 0);
  }
  void start(const Part& server, const Part& client) {
    start_process(0, 1, &board_->server, server);
    int32_t rest = crowd_.ranks - 1;
    for (int i = 0; i < crowd_.processes; ++i) {
      start_process(1 + rest * i / crowd_.processes,
                    1 + rest * (i + 1) / crowd_.processes, &board_->clients,
                    client);
    }
  }
  // Lets all go; seconds until the last has ended.
  double run() {
    await(board_->ready);
    int64_t begin = now_ns();
    gate_.open();
    await(board_->finished);
    return static_cast<double>(board_->last_end.load() - begin) * 1e-9;
  }

 private:
  void start_process(int32_t first, int32_t last, Counts* side,
                     const Part& part) {
    pid_t pid = fork();
    if (pid > 0) children_.push_back(pid);
    if (pid != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    gate_.open();
    counts = side;
    std::vector<std::thread> threads;
    for (int32_t r = first; r < last; ++r) {
      threads.emplace_back([&, r] {
        ++board_->ready;
        gate_.wait();
        board_->end(part(r));
      });
    }
    for (std::thread& t : threads) t.join();
    _exit(0);
  }
  void await(const std::atomic<int32_t>& count) {
    Deadline deadline = Deadline::after(100 * kSecond);
    while (count.load() < crowd_.ranks) {
      if (deadline.passed()) return board_->fail("not all ranks ended in time");
      usleep(500);
    }
  }

  const Crowd& crowd_;
  Board* const board_;
  Gate gate_;
  std::vector<pid_t> children_;
};

// Rank 0 holds a connection per rank.
void allow_descriptors(int32_t ranks) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  rlim_t need = static_cast<rlim_t>(ranks) + 100;
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(need, limit.rlim_max));
  setrlimit(RLIMIT_NOFILE, &limit);
}

Result<Fd> free_listener(SocketAddress* address) {
  sockaddr_in any = {};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::memcpy(&address->storage, &any, sizeof any);
  address->length = sizeof any;
  ALQ_ASSIGN(Fd fd, listen_on(*address));
  address->length = sizeof address->storage;
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address->storage),
              &address->length);
  return fd;
}

std::string value_of(const Crowd& crowd, int32_t rank) {
  std::string value = fmt::format("rank {} ", rank);
  value.resize(static_cast<size_t>(crowd.value_bytes),
               static_cast<char>('a' + rank % 26));
  return value;
}

Status join_one(const Crowd& crowd, const std::string& address, int32_t rank) {
  if (rank == 0) allow_descriptors(crowd.ranks);
  Place place;
  place.rank = place.local_rank = rank;
  place.size = place.local_size = crowd.ranks;
  place.address = address;
  place.secret = "of this crowd";
  Deadline deadline = Deadline::after(90 * kSecond);
  ALQ_ASSIGN(auto store, store_bootstrap(place, deadline));
  ALQ_ASSIGN(std::vector<Bytes> all,
             store->all_gather(exchange_key("world", 0), value_of(crowd, rank),
                               deadline));
  for (int32_t q = 0; q < crowd.ranks; ++q) {
    if (all[static_cast<size_t>(q)] == value_of(crowd, q)) continue;
    return make_error(ALQ_DATA_LOSS, "rank {} has another value of {}", rank,
                      q);
  }
  return {};
}

Status bare_server(const Crowd& crowd, const Fd& listener) {
  allow_descriptors(crowd.ranks);
  Fd epoll(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event = {EPOLLIN, {.fd = listener.get()}};
  epoll_ctl(epoll.get(), EPOLL_CTL_ADD, listener.get(), &event);
  std::vector<Fd> open(kDescriptors);
  int32_t left = crowd.ranks - 1;
  Deadline deadline = Deadline::after(90 * kSecond);
  while (left > 0) {
    if (deadline.passed()) return make_error(ALQ_DEADLINE_EXCEEDED, "bare");
    std::array<epoll_event, 256> events;
    int n = epoll_wait(epoll.get(), events.data(), 256, 1000);
    for (int i = 0; i < n; ++i) {
      int fd = events[static_cast<size_t>(i)].data.fd;
      char bytes[kBareBytes];
      if (fd != listener.get()) {
        if (recv(fd, bytes, sizeof bytes, 0) > 0) {
          send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
          --left;
        }
        epoll_ctl(epoll.get(), EPOLL_CTL_DEL, fd, nullptr);
        continue;
      }
      while (true) {
        Fd peer(accept4(fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (!peer) break;
        epoll_event in = {EPOLLIN, {.fd = peer.get()}};
        epoll_ctl(epoll.get(), EPOLL_CTL_ADD, peer.get(), &in);
        auto at = static_cast<size_t>(peer.get());
        open[at] = std::move(peer);
      }
    }
  }
  return {};
}

Status bare_client(const SocketAddress& address) {
  Deadline deadline = Deadline::after(90 * kSecond);
  ALQ_ASSIGN(Fd fd, connect_to(address, deadline));
  ALQ_TRY(send_all(fd.get(), std::string(kBareBytes, 'x'), deadline));
  return receive_exactly(fd.get(), kBareBytes, deadline).status();
}

Traffic traffic(const Counts& c) {
  return {c.messages.load(), c.bytes.load(), c.calls.load()};
}

CrowdResult run(const Crowd& crowd, const Part& server, const Part& client) {
  CrowdResult result;
  void* page = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) {
    result.error = "no shared page";
    return result;
  }
  auto* board = new (page) Board();
  {
    Stage stage(crowd, board);
    stage.start(server, client);
    result.seconds = stage.run();
  }
  result.error = board->error;
  result.server = traffic(board->server);
  result.clients = traffic(board->clients);
  munmap(page, sizeof(Board));
  return result;
}

}  // namespace

CrowdResult join_through_store(const Crowd& crowd) {
  SocketAddress address;
  // Free a moment ago; the store opens its own listener there.
  if (!free_listener(&address).ok()) return {"no free port", 0, {}, {}};
  std::string text = address.text();
  auto part = [&](int32_t rank) { return join_one(crowd, text, rank); };
  return run(crowd, part, part);
}

CrowdResult bare_round_trips(const Crowd& crowd) {
  SocketAddress address;
  Result<Fd> listener = free_listener(&address);
  if (!listener.ok()) return {listener.status().message(), 0, {}, {}};
  return run(
      crowd, [&](int32_t) { return bare_server(crowd, *listener); },
      [&](int32_t) { return bare_client(address); });
}

}  // namespace aliquot::bench
