// Non-blocking TCP sockets with deadlines.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "comm/bootstrap/address.h"

namespace aliquot {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

enum class Io { kDone, kAgain, kClosed };

// Appends what can be read now, at most `most` bytes in all of *in.
Io read_some(int fd, std::string* in, size_t most);
// Sends what can be sent now and advances *sent.
Io write_some(int fd, std::string_view out, size_t* sent);

// A socket that listens on exactly this address.
Result<Fd> listen_on(const SocketAddress& address);
Result<Fd> connect_to(const SocketAddress& address, Deadline deadline);

// Whole messages; errors: UNAVAILABLE (closed), DEADLINE_EXCEEDED.
Status send_all(int fd, std::string_view bytes, Deadline deadline);
Result<std::string> receive_exactly(int fd, size_t bytes, Deadline deadline);

// Poll timeout in whole milliseconds, rounded up.
int poll_ms(Deadline deadline);

}  // namespace aliquot
