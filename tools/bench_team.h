// The ranks of a benchmark: forked processes that share one block of memory for
// their barrier, their timings and the bare loops' buffers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "aliquot/aliquot.h"

namespace aliquot::tools {

inline constexpr int kMostRanks = 64;

// Private memory of a rank, by its own addresses.
struct PeerMemory {
  int pid;
  const float* src;
  const float* dst;
};

struct alignas(64) TeamSlot {
  std::atomic<uint64_t> epoch;
  double value;
  PeerMemory memory;
  size_t blob_bytes;
  char blob[1024];
  char error[1100];
};

struct TeamShared {
  std::atomic<bool> stop;
  TeamSlot slots[kMostRanks];
};

class Team {
 public:
  Team(TeamShared* shared, char* memory, size_t bytes, int rank, int size);

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Spins a little if ranks have cores of their own, then yields.  Ends the
  // process when another rank has failed.
  void barrier();
  // The largest of all ranks' values, on every rank.
  double largest(double mine);
  // Rank 0's value, on every rank.
  double of_rank_0(double mine);

  // What every rank told, by rank.
  std::vector<PeerMemory> tell_memory(const PeerMemory& mine);

  // Shared memory of `bytes` bytes per rank, which all ranks may read and
  // write.
  float* memory(int rank) const;
  size_t memory_bytes() const { return bytes_; }

  // This rank, connected through a BYTES bootstrap.
  alq_context* open(const char* hints = nullptr);
  // Ends the process if status is an error.
  void check(alq_status status, const alq_error& error, const char* what);
  [[noreturn]] void fail(const std::string& why);

 private:
  TeamShared* const shared_;
  char* const memory_;
  const size_t bytes_;
  const int rank_, size_;
  const int spins_;
  uint64_t epoch_ = 0;
};

// Runs body in `ranks` processes; bytes of shared memory per rank.  0 if all
// returned 0; else says on stderr what went wrong.
int run_team(int ranks, size_t bytes, const std::function<int(Team&)>& body);

// Seconds.
double now_s();
int usable_cores();

}  // namespace aliquot::tools
