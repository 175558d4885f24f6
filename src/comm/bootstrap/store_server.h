// The store's server: rank 0.  One epoll set, no thread: it serves while rank 0
// waits in join or all_gather.  Cost per exchange: one read and one write per
// rank; the table is encoded once and sent to all.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/bootstrap/bootstrap.h"
#include "comm/bootstrap/store_connection.h"

namespace aliquot {

class StoreServer final : public Bootstrap {
 public:
  static Result<std::unique_ptr<StoreServer>> listen(const Place& place);

  // Returns when every rank has proved the secret; then stops listening.
  Status join(Deadline deadline);
  Result<std::vector<Bytes>> all_gather(const std::string& key, Bytes mine,
                                        Deadline deadline) override;

 private:
  StoreServer(const Place& place, Fd listener, Fd epoll, SocketAddress bound);

  // Serves until nothing is awaited and nothing is left to send.
  Status serve(Deadline deadline);
  int wait_ms(Deadline deadline) const;
  void on_event(int fd, uint32_t events);
  void accept_some();
  void add(Fd fd, std::string from);
  void drop_late_strangers(int64_t now);
  bool drop_oldest_stranger();
  void drop(int fd);
  // No more strangers.
  void close_door();

  void on_stranger(StoreConnection& c);
  void admit(StoreConnection& c);
  Status admission(const StoreConnection& c);
  void on_member(StoreConnection& c, uint32_t events);
  void take_frame(StoreConnection& c);
  void lose(StoreConnection& c);
  void watch(const StoreConnection& c, int how);

  void send_to_members(const std::string& bytes);
  Status fail(Status status);
  Status deadline_error() const;
  std::string state_of(int32_t rank) const;
  int32_t arrived() const;

  const Place place_;
  Fd listener_, epoll_;
  const SocketAddress bound_;
  const int64_t started_;
  int64_t phase_started_ = 0;
  std::map<int, std::unique_ptr<StoreConnection>> connections_;  // by fd
  std::vector<StoreConnection*> members_;  // by rank; null: not there
  std::vector<bool> lost_, wrong_secret_;  // by rank
  int32_t joined_ = 1, strangers_ = 0;
  int64_t next_sweep_ = 0;
  std::string notes_;  // refused duplicates, for the deadline's message

  std::string phase_;  // "join" or the key
  bool gathering_ = false, answered_ = false;
  std::vector<bool> has_value_;
  std::vector<Bytes> values_;
  int32_t awaited_ = 0, unflushed_ = 0;
  std::set<std::string> used_keys_;
  Status fatal_;   // found while serving
  Status failed_;  // told to all
};

}  // namespace aliquot
