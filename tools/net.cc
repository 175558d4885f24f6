#include "tools/net.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

namespace aliquot::tools {

int free_loopback_port() {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  int port = 0;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), bytes) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) == 0) {
    port = ntohs(address.sin_port);
  }
  close(fd);
  return port;
}

std::string random_secret() {
  std::array<unsigned char, 32> bytes;
  size_t have = 0;
  while (have < bytes.size()) {
    ssize_t n = getrandom(bytes.data() + have, bytes.size() - have, 0);
    if (n > 0) have += static_cast<size_t>(n);
  }
  std::string hex;
  for (unsigned char byte : bytes) hex += fmt::format("{:02x}", byte);
  return hex;
}

}  // namespace aliquot::tools
