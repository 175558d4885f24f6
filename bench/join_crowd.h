// A world whose ranks join through the store: rank 0 is a process that serves,
// the others are threads of a few client processes, and every rank does what it
// does when a context is opened: join, then exchange one value.
//
// What goes over the sockets is counted on the way, by a send and a recv of the
// program's own that pass on to the kernel.
#pragma once

#include <cstdint>
#include <string>

namespace aliquot::bench {

struct Crowd {
  int32_t ranks = 1000;
  int processes = 4;          // of clients
  int64_t value_bytes = 176;  // about what a rank hands in
};

struct Traffic {
  int64_t messages = 0, bytes = 0;  // sent
  int64_t calls = 0;                // of send and recv, also those in vain
};

struct CrowdResult {
  std::string error;   // "" if every rank has every value
  double seconds = 0;  // from the start of all to the end of the last
  Traffic server, clients;
};

CrowdResult join_through_store(const Crowd& crowd);
// The floor: as many bare connections, each with one small round trip.
CrowdResult bare_round_trips(const Crowd& crowd);

}  // namespace aliquot::bench
