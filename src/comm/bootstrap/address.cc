#include "comm/bootstrap/address.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <charconv>
#include <cstring>

namespace aliquot {
namespace {

bool parse_port(std::string_view text, uint16_t* port) {
  auto [end, ec] =
      std::from_chars(text.data(), text.data() + text.size(), *port);
  return ec == std::errc() && end == text.data() + text.size() && *port != 0;
}

bool v4_loopback(const in_addr& a) { return ntohl(a.s_addr) >> 24 == 127; }

bool v6_loopback(const in6_addr& a) {
  if (IN6_IS_ADDR_LOOPBACK(&a)) return true;
  return IN6_IS_ADDR_V4MAPPED(&a) && a.s6_addr[12] == 127;
}

}  // namespace

bool SocketAddress::loopback() const {
  if (family() == AF_INET) {
    sockaddr_in a;
    std::memcpy(&a, &storage, sizeof a);
    return v4_loopback(a.sin_addr);
  }
  sockaddr_in6 a;
  std::memcpy(&a, &storage, sizeof a);
  return family() == AF_INET6 && v6_loopback(a.sin6_addr);
}

void SocketAddress::set_port(uint16_t port) {
  // sin_port and sin6_port lie at the same offset.
  static_assert(offsetof(sockaddr_in, sin_port) ==
                offsetof(sockaddr_in6, sin6_port));
  uint16_t network = htons(port);
  std::memcpy(
      reinterpret_cast<char*>(&storage) + offsetof(sockaddr_in, sin_port),
      &network, sizeof network);
}

std::string SocketAddress::text() const {
  char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
  getnameinfo(get(), length, host, sizeof host, port, sizeof port,
              NI_NUMERICHOST | NI_NUMERICSERV);
  return family() == AF_INET6 ? fmt::format("[{}]:{}", host, port)
                              : fmt::format("{}:{}", host, port);
}

Result<StoreAddress> parse_store_address(std::string_view text) {
  auto bad = [&](const char* why) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "store address \"{}\": {}; write \"host:port\", "
                      "\"[ipv6]:port\" or \"host:first-last\"",
                      text, why);
  };
  if (text.size() > 300) return bad("too long");
  size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return bad("no port");
  std::string_view host = text.substr(0, colon);
  std::string_view ports = text.substr(colon + 1);
  if (host.starts_with('[') && host.ends_with(']') && host.size() > 2) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":[]") != std::string_view::npos) {
    return bad("an IPv6 host needs brackets");
  }
  if (host.empty()) return bad("no host");

  StoreAddress out;
  out.host = host;
  size_t dash = ports.find('-');
  if (!parse_port(ports.substr(0, dash), &out.first)) {
    return bad("ports are 1 to 65535");
  }
  out.last = out.first;
  if (dash != std::string_view::npos &&
      !parse_port(ports.substr(dash + 1), &out.last)) {
    return bad("ports are 1 to 65535");
  }
  if (out.last < out.first || out.last - out.first > 255) {
    return bad("a range has at most 256 ports, smallest first");
  }
  return out;
}

bool names_loopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return v4_loopback(v4);
  in6_addr v6;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && v6_loopback(v6);
}

Result<std::vector<SocketAddress>> resolve(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  int rc = getaddrinfo(host.c_str(), nullptr, &hints, &list);
  if (rc != 0) {
    return make_error(ALQ_UNAVAILABLE, "host \"{}\" does not resolve: {}", host,
                      gai_strerror(rc));
  }
  std::vector<SocketAddress> out;
  for (addrinfo* a = list; a != nullptr; a = a->ai_next) {
    if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
    SocketAddress address;
    std::memcpy(&address.storage, a->ai_addr, a->ai_addrlen);
    address.length = a->ai_addrlen;
    out.push_back(address);
  }
  freeaddrinfo(list);
  if (out.empty()) {
    return make_error(ALQ_UNAVAILABLE, "host \"{}\" has no IP address", host);
  }
  return out;
}

}  // namespace aliquot
