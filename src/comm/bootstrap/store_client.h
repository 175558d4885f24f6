// The store's client: every rank but 0.  One connection, one message each way
// per exchange.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/bootstrap/bootstrap.h"
#include "comm/bootstrap/socket.h"
#include "comm/bootstrap/wire.h"

namespace aliquot {

class StoreClient final : public Bootstrap {
 public:
  // Retries until rank 0 admits this rank, then waits for all others.
  static Result<std::unique_ptr<StoreClient>> join(const Place& place,
                                                   Deadline deadline);
  Result<std::vector<Bytes>> all_gather(const std::string& key, Bytes mine,
                                        Deadline deadline) override;

 private:
  StoreClient(const Place& place, Fd fd, std::string server)
      : place_(place), fd_(std::move(fd)), server_(std::move(server)) {}

  // The body of the kTable frame that ends `phase`.
  Result<std::string> await_table(const std::string& phase, Deadline deadline);
  Status broken(const Status& cause, const std::string& phase, int64_t since);
  Status fail(Status status);

  const Place place_;
  Fd fd_;
  const std::string server_;
  std::set<std::string> used_keys_;
  Status failed_;
};

}  // namespace aliquot
