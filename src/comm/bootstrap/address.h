// Store addresses: "host:port", "host:first-last", "[ipv6]:port".
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace aliquot {

struct StoreAddress {
  std::string host;
  uint16_t first = 0, last = 0;  // equal: one port
  bool ranged() const { return first != last; }
};

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;
  int family() const { return storage.ss_family; }
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
  bool loopback() const;
  void set_port(uint16_t port);
  std::string text() const;  // "127.0.0.1:29501"
};

Result<StoreAddress> parse_store_address(std::string_view text);

// True for 127.0.0.0/8, ::1 and "localhost"; asks no name server.
bool names_loopback(const std::string& host);

// Takes as long as the system's resolver.
Result<std::vector<SocketAddress>> resolve(const std::string& host);

}  // namespace aliquot
