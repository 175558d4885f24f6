#include "fuzz/peer.h"

#include <fmt/format.h>
#include <poll.h>

#include "fuzz/fuzz.h"
#include "support/free_port.h"

namespace aliquot::fuzz {

std::string fresh_address() {
  static const int port = free_port();
  static uint32_t next = static_cast<uint32_t>(getpid()) * 4096;
  uint32_t n = next++ % 0xfdfdfd;
  return fmt::format("127.{}.{}.{}:{}", 1 + n / 0xfe / 0xfe % 0xfe,
                     1 + n / 0xfe % 0xfe, 1 + n % 0xfe, port);
}

void Raw::connect(const std::string& address) {
  close();
  Result<StoreAddress> parsed = parse_store_address(address);
  expect(parsed.ok(), "the fuzz target's address");
  Result<std::vector<SocketAddress>> all = resolve(parsed->host);
  expect(all.ok(), "the fuzz target's host");
  (*all)[0].set_port(parsed->first);
  Result<Fd> fd = connect_to((*all)[0], Deadline::after(kLong));
  if (fd.ok()) take(std::move(*fd));
}

void Raw::take(Fd fd) {
  fd_ = std::move(fd);
  said_ = 0;
}

void Raw::say(std::string_view bytes) {
  if (!open()) return;
  size_t sent = 0;
  if (write_some(fd(), bytes, &sent) == Io::kClosed) close();
  said_ += sent;
}

std::string Raw::hear(size_t bytes) {
  std::string in;
  while (open() && read_some(fd(), &in, bytes) == Io::kAgain) {
    pollfd p = {fd(), POLLIN, 0};
    expect(poll(&p, 1, 50'000) > 0, "the store answers or closes");
  }
  return in;
}

void Raw::half_close() {
  if (open()) shutdown(fd(), SHUT_WR);
}

void Raw::close() { fd_.reset(); }

void Raw::reset() {
  linger now = {1, 0};
  if (open()) setsockopt(fd(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close();
}

Actor::Actor()
    : thread_([this] {
        std::unique_lock lock(mutex_);
        while (true) {
          changed_.wait(lock, [&] { return end_ || part_ != nullptr; });
          if (end_) return;
          std::function<void()> part = part_;
          lock.unlock();
          part();
          lock.lock();
          part_ = nullptr;
          changed_.notify_all();
        }
      }) {}

Actor::~Actor() {
  {
    std::lock_guard lock(mutex_);
    end_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Actor::begin(std::function<void()> part) {
  {
    std::lock_guard lock(mutex_);
    part_ = std::move(part);
  }
  changed_.notify_all();
}

void Actor::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return part_ == nullptr; });
}

}  // namespace aliquot::fuzz
