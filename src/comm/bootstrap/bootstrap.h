// Bootstrap: how the ranks of a job find each other before any group exists.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace aliquot {

using Bytes = std::string;  // opaque bytes

// Names an exchange: what for and of which generation, so that a rank of an
// earlier one is told apart.
std::string exchange_key(std::string_view name, uint64_t generation);

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  // Every rank's bytes to every rank, in rank order.  `key` names the exchange
  // and is used once.  An error names the ranks that did not come.  After an
  // error every later call repeats it.
  virtual Result<std::vector<Bytes>> all_gather(const std::string& key,
                                                Bytes mine,
                                                Deadline deadline) = 0;
};

// Where this process stands, read from one source of the environment.
struct Place {
  int32_t rank = 0, size = 1;
  // local_size 0: the environment does not say and the address is not loopback.
  int32_t local_rank = 0, local_size = 1;
  // "host:port" of the store, or "host:first-last": rank 0 takes the first free
  // port and the others look for it; empty in a world of one.
  std::string address;
  std::string secret;
  std::string source;       // "aliquot", "torchrun", "none"
  uint64_t generation = 0;  // how often the job was started again
};

// ALIQUOT_RANK, _WORLD_SIZE, _LOCAL_RANK, _LOCAL_SIZE, _STORE ("host:port"),
// _SECRET; else torchrun's RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT.  Two sources that disagree are an error listing
// both; a half-set source is an error naming what is missing.
//
// torchrun: MASTER_PORT belongs to its own store (or to torch.distributed), so
// ours is in the 16 ports after it; ALIQUOT_STORE names another.  When all
// ranks are on one host the store is on 127.0.0.1 whatever MASTER_ADDR says.
// Without ALIQUOT_SECRET, and on loopback only, the secret is derived from the
// user, MASTER_ADDR, MASTER_PORT, the run id and the restart count: that keeps
// jobs apart but does not keep out a local process that knows these.
Result<Place> place_from_environment();

// The TCP store: rank 0 listens on exactly the address given, all ranks
// connect; a shared secret is proved by challenge and response before anything
// else.  Returns when all ranks have joined.  No thread: rank 0 serves inside
// its own calls.
Result<std::unique_ptr<Bootstrap>> store_bootstrap(const Place& place,
                                                   Deadline deadline);

// Threads of one process that name the same world.  Never blocks.
Result<std::unique_ptr<Bootstrap>> local_bootstrap(const std::string& world,
                                                   int32_t rank, int32_t size);

}  // namespace aliquot
