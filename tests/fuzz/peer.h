// The other side of the store, for fuzz targets: raw connections, and a thread
// that plays a part while the target's own thread runs the code under test.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "comm/bootstrap/bootstrap.h"
#include "comm/bootstrap/socket.h"

namespace aliquot::fuzz {

constexpr const char* kSecret = "correct horse";
// Longer than any input takes: to reach it is a failure.
constexpr int64_t kLong = 50'000'000'000;

// "127.a.b.c:port", another one each time, so that closed connections of
// earlier inputs are never met.
std::string fresh_address();

inline Place place_of(const std::string& address, int32_t rank) {
  Place place;
  place.rank = place.local_rank = rank;
  place.size = place.local_size = 2;
  place.address = address;
  place.secret = kSecret;
  return place;
}

// A connection that says anything.
class Raw {
 public:
  void connect(const std::string& address);
  void take(Fd fd);
  bool open() const { return static_cast<bool>(fd_); }
  int fd() const { return fd_.get(); }
  void say(std::string_view bytes);  // as much as the socket takes
  // Waits for so many bytes; fewer if the other side closes.
  std::string hear(size_t bytes);
  void half_close();
  void close();
  void reset();  // closes without a farewell
  size_t said() const { return said_; }

 private:
  Fd fd_;
  size_t said_ = 0;
};

// A thread that waits for parts to play.
class Actor {
 public:
  Actor();
  ~Actor();
  void begin(std::function<void()> part);
  void wait();  // until it is played

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> part_;
  bool end_ = false;
  std::thread thread_;
};

}  // namespace aliquot::fuzz
