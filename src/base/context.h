// What every object of a rank shares: its place in the world, its deadlines,
// its log and its fault points.  Passive: no threads, no I/O.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/dynlib.h"
#include "base/fault.h"
#include "base/flight.h"
#include "base/log.h"

namespace aliquot {

struct Context {
  Context(int32_t own_rank, int32_t world_size)
      : rank(own_rank), size(world_size), faults(own_rank) {}

  const int32_t rank, size;
  int32_t local_rank = 0, local_size = 1;
  int64_t timeout_ns = 300'000'000'000;  // default deadline of every call
  double time_scale = 1;                 // multiplies every detector constant
  // Makes queued operations as slow as such a wire; 0: off.
  double throttle_bytes_per_s = 0;
  // Large private buffers that peers read may be moved to huge pages.
  bool huge_pages = true;
  // Bytes between two ranks up to which private memory is staged: instead of
  // what the world measures.  Those of rank 0 count.
  std::optional<int64_t> stage_sums, stage_copies;
  // And whether what peers read next is written past the caches.
  std::optional<bool> stage_streams;
  // What is loaded at run time: in place of what would be searched for, by
  // name ("cuda"), and folders that are searched before the system's.
  std::map<std::string, std::string> library_paths;
  std::vector<std::string> library_dirs;
  LibrarySet libraries;
  // A file with GPU kernels to use instead of the built-in ones; or empty.
  std::string cuda_image;
  LogRing log;
  Faults faults;
  std::unique_ptr<Flight> flight;  // null: nothing is recorded

  // timeout 0 means the default.
  Deadline deadline(int64_t timeout) const {
    return Deadline::after(timeout > 0 ? timeout : timeout_ns);
  }
  // A detector constant, scaled.
  int64_t scaled(int64_t ns) const {
    return static_cast<int64_t>(static_cast<double>(ns) * time_scale);
  }
};

}  // namespace aliquot
