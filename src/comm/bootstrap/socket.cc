#include "comm/bootstrap/socket.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace aliquot {
namespace {

constexpr int kTypeFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

void no_delay(int fd) {
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// Waits for events; closed connections count as ready.
Status wait_for(int fd, short events, Deadline deadline) {
  while (true) {
    pollfd p{fd, events, 0};
    int n = poll(&p, 1, poll_ms(deadline));
    if (n > 0) return {};
    if (n < 0 && errno != EINTR)
      return errno_error(ALQ_INTERNAL, "poll", errno);
    if (deadline.passed()) {
      return make_error(ALQ_DEADLINE_EXCEEDED, "no answer in time");
    }
  }
}

Status closed() {
  return make_error(ALQ_UNAVAILABLE, "the other side closed the connection");
}

}  // namespace

void Fd::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

int poll_ms(Deadline deadline) {
  int64_t ms = (deadline.left() + 999'999) / 1'000'000;
  return static_cast<int>(std::min<int64_t>(ms, INT_MAX));
}

Io read_some(int fd, std::string* in, size_t most) {
  char buffer[16384];
  while (in->size() < most) {
    size_t want = std::min(sizeof buffer, most - in->size());
    ssize_t n = recv(fd, buffer, want, 0);
    if (n > 0) {
      in->append(buffer, static_cast<size_t>(n));
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return Io::kAgain;
    } else {
      return Io::kClosed;
    }
  }
  return Io::kDone;
}

Io write_some(int fd, std::string_view out, size_t* sent) {
  while (*sent < out.size()) {
    ssize_t n = send(fd, out.data() + *sent, out.size() - *sent, MSG_NOSIGNAL);
    if (n >= 0) {
      *sent += static_cast<size_t>(n);
    } else if (errno == EINTR) {
      continue;
    } else {
      return errno == EAGAIN || errno == EWOULDBLOCK ? Io::kAgain : Io::kClosed;
    }
  }
  return Io::kDone;
}

Result<Fd> listen_on(const SocketAddress& address) {
  Fd fd(socket(address.family(), kTypeFlags, 0));
  if (!fd) return errno_error(ALQ_UNAVAILABLE, "socket", errno);
  int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.family() == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  }
  if (bind(fd.get(), address.get(), address.length) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    return errno_error(ALQ_UNAVAILABLE, "listen on " + address.text(), errno);
  }
  return fd;
}

Result<Fd> connect_to(const SocketAddress& address, Deadline deadline) {
  Fd fd(socket(address.family(), kTypeFlags, 0));
  if (!fd) return errno_error(ALQ_UNAVAILABLE, "socket", errno);
  no_delay(fd.get());
  auto failed = [&](int err) {
    return errno_error(ALQ_UNAVAILABLE, "connect to " + address.text(), err);
  };
  if (connect(fd.get(), address.get(), address.length) != 0) {
    if (errno != EINPROGRESS) return failed(errno);
    ALQ_TRY(wait_for(fd.get(), POLLOUT, deadline));
    int err = 0;
    socklen_t length = sizeof err;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &err, &length);
    if (err != 0) return failed(err);
  }
  // A connection to an unused local port may, by chance, meet itself.
  SocketAddress own;
  own.length = sizeof own.storage;
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.length);
  if (own.text() == address.text()) return failed(ECONNREFUSED);
  return fd;
}

Status send_all(int fd, std::string_view bytes, Deadline deadline) {
  size_t sent = 0;
  while (true) {
    Io io = write_some(fd, bytes, &sent);
    if (io == Io::kDone) return {};
    if (io == Io::kClosed) return closed();
    ALQ_TRY(wait_for(fd, POLLOUT, deadline));
  }
}

Result<std::string> receive_exactly(int fd, size_t bytes, Deadline deadline) {
  std::string in;
  while (true) {
    Io io = read_some(fd, &in, bytes);
    if (io == Io::kDone) return in;
    if (io == Io::kClosed) return closed();
    ALQ_TRY(wait_for(fd, POLLIN, deadline));
  }
}

}  // namespace aliquot
