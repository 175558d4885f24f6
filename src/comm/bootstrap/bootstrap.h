// Bootstrap: how the ranks of a job find each other before any group exists.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace aliquot {

using Bytes = std::string;  // opaque bytes

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  // Every rank's bytes to every rank, in rank order.  `key` names the exchange
  // and is used once.  An error names the ranks that did not come.
  virtual Result<std::vector<Bytes>> all_gather(const std::string& key,
                                                Bytes mine,
                                                Deadline deadline) = 0;
};

// Where this process stands, read from one source of the environment.
struct Place {
  int32_t rank = 0, size = 1;
  int32_t local_rank = 0, local_size = 1;
  std::string address;  // "host:port" of the store
  std::string secret;
  std::string source;  // "aliquot", "torchrun", "none"
};

// ALIQUOT_RANK, _WORLD_SIZE, _LOCAL_RANK, _LOCAL_SIZE, _STORE ("host:port"),
// _SECRET; else torchrun's RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT.  Two sources that disagree are an error listing
// both; a half-set source is an error naming what is missing.
Result<Place> place_from_environment();

// The TCP store: rank 0 listens (on loopback unless the address says
// otherwise), all ranks connect; a shared secret is proved by challenge and
// response before anything else.
Result<std::unique_ptr<Bootstrap>> store_bootstrap(const Place& place,
                                                   Deadline deadline);

// Threads of one process that name the same world.
Result<std::unique_ptr<Bootstrap>> local_bootstrap(const std::string& world,
                                                   int32_t rank, int32_t size);

}  // namespace aliquot
