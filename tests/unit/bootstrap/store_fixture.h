// A store on a free loopback port.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/free_port.h"
#include "unit/bootstrap/ranks.h"

namespace aliquot {

inline Place place_at(int port, int32_t rank, int32_t size) {
  Place p;
  p.rank = p.local_rank = rank;
  p.size = p.local_size = size;
  p.address = "127.0.0.1:" + std::to_string(port);
  p.secret = "correct horse";
  return p;
}

inline Status join_and_exchange(const Place& place, int64_t ms,
                                std::vector<const char*> keys = {"k"}) {
  ALQ_ASSIGN(auto b, store_bootstrap(place, in_ms(ms)));
  for (const char* key : keys) {
    ALQ_TRY(exchange(*b, key, place.rank, place.size, in_ms(ms)));
  }
  return {};
}

inline bool says(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

// A raw connection to the store, as a stranger would make it.
class Stranger {
 public:
  explicit Stranger(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in a = {};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a.sin_port = htons(static_cast<uint16_t>(port));
    for (int i = 0; i < 500; ++i) {
      connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&a), sizeof a) == 0;
      if (connected_) break;
      usleep(10'000);
    }
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  ~Stranger() { close(fd_); }
  bool connected() const { return connected_; }
  void say(std::string_view bytes) {
    (void)!::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Up to n bytes; fewer when the store hangs up or says no more for 5 s.
  std::string hear(size_t n) {
    timeval t = {5, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    std::string out(n, '\0');
    ssize_t got = recv(fd_, out.data(), n, MSG_WAITALL);
    out.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return out;
  }
  void half_close() { shutdown(fd_, SHUT_WR); }

 private:
  int fd_;
  bool connected_ = false;
};

}  // namespace aliquot
