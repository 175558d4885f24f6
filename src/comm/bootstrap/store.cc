// Chooses the side of the store that a rank is.
#include "comm/bootstrap/auth.h"
#include "comm/bootstrap/bootstrap.h"
#include "comm/bootstrap/store_client.h"
#include "comm/bootstrap/store_server.h"

namespace aliquot {
namespace {

// A world of one needs no network.
class Alone final : public Bootstrap {
 public:
  Result<std::vector<Bytes>> all_gather(const std::string&, Bytes mine,
                                        Deadline) override {
    std::vector<Bytes> all;
    all.push_back(std::move(mine));
    return all;
  }
};

}  // namespace

std::string exchange_key(std::string_view name, uint64_t generation) {
  return fmt::format("{}@{}", name, generation);
}

Result<std::unique_ptr<Bootstrap>> store_bootstrap(const Place& place,
                                                   Deadline deadline) {
  if (place.size < 1 || place.size > kMaxWorld || place.rank < 0 ||
      place.rank >= place.size) {
    return make_error(
        ALQ_INVALID_ARGUMENT,
        "rank {} of {}: a world has 1 to {} ranks, counted from 0", place.rank,
        place.size, kMaxWorld);
  }
  if (place.size == 1) return std::unique_ptr<Bootstrap>(new Alone);
  ALQ_TRY(check_secret(place.secret));
  if (place.rank == 0) {
    ALQ_ASSIGN(std::unique_ptr<StoreServer> server, StoreServer::listen(place));
    ALQ_TRY(server->join(deadline));
    return std::unique_ptr<Bootstrap>(std::move(server));
  }
  ALQ_ASSIGN(std::unique_ptr<StoreClient> client,
             StoreClient::join(place, deadline));
  return std::unique_ptr<Bootstrap>(std::move(client));
}

}  // namespace aliquot
