// The file of the flight recorder, as it lies in memory.  Plain data, in the
// byte order of the host: read on a machine of the same kind.
#pragma once

#include <atomic>
#include <cstdint>

namespace aliquot {

constexpr char kFlightMagic[8] = {'A', 'L', 'Q', 'F', 'L', 'T', '0', '1'};

enum FlightEnding : uint32_t { kFlightOpen, kFlightClosed, kFlightFailed };

struct alignas(4096) FlightHeader {
  char magic[8];
  int32_t rank, size, pid;
  std::atomic<uint32_t> groups;  // used so far
  uint64_t start_time;
  int64_t opened_ns;  // monotonic clock of the host
  std::atomic<uint32_t> ending;
  int32_t error_code, error_rank;
  uint32_t reserved;
  int64_t error_ns;
  char host[64];
  char error[1024];
  // By number; a file explains itself.
  char kinds[24][16];
  char dtypes[32][8];
};

struct FlightGroup {
  char name[56];
  int32_t size;
  uint32_t reserved;
  int16_t ranks[64];
};

enum FlightState : uint32_t {
  kFlightIssued,   // called; earlier operations or peers are awaited
  kFlightArrived,  // announced to the peers
  kFlightDone,
  kFlightError,
};

struct FlightRecord {
  uint64_t order;   // counts the rank's operations, from 1; 0: unused
  uint64_t number;  // in its group (of messages: with that peer)
  int64_t issued_ns, ended_ns;
  int64_t count;
  uint32_t group;
  int32_t kind, dtype, root;
  std::atomic<uint32_t> state;
  char label[68];
};
static_assert(sizeof(FlightRecord) == 128);

constexpr uint32_t kFlightGroups = 64;
constexpr uint32_t kFlightRecords = 1024;

struct FlightFile {
  FlightHeader header;
  FlightGroup groups[kFlightGroups];
  FlightRecord records[kFlightRecords];
};

}  // namespace aliquot
