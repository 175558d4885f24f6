#include "base/flight.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/file_limit.h"
#include "base/process.h"
#include "base/text.h"

namespace aliquot {
namespace {

// Records of a context that lives somewhere are never taken from it: it has
// them mapped.
bool in_use(const std::string& path) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  FlightHeader header;
  struct stat s = {};
  bool whole =
      pread(fd, &header, sizeof header, 0) == ssize_t{sizeof header} &&
      std::memcmp(header.magic, kFlightMagic, sizeof header.magic) == 0;
  bool young = fstat(fd, &s) == 0 && time(nullptr) - s.st_mtime < 10;
  ::close(fd);
  if (!whole) return young;  // being made
  // Of an attempt to join that failed: this may be the next one.
  if (header.pid == getpid() && header.ending.load() == kFlightFailed &&
      header.groups.load() == 0) {
    return false;
  }
  return header.ending.load() != kFlightClosed && header.start_time != 0 &&
         process_state(header.pid, header.start_time) != ProcessState::kEnded;
}

// The file of a rank; that of a rank of another world of the same job (a group
// of some, one alone) has a name apart, which `aliquot blame` does not read.
Result<int> new_file(const std::string& dir, int32_t rank, std::string* path) {
  static std::atomic<int> apart{0};
  *path = fmt::format("{}/rank-{}.flight", dir, rank);
  for (int attempt = 0; attempt < 8; ++attempt) {
    int fd = open(path->c_str(),
                  O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0) return fd;
    if (errno != EEXIST) break;
    if (in_use(*path)) {
      *path = fmt::format("{}/apart-{}-{}.rank-{}.flight", dir, getpid(),
                          apart.fetch_add(1), rank);
    } else if (unlink(path->c_str()) != 0 && errno != ENOENT) {
      break;
    }
  }
  return errno_error(ALQ_UNAVAILABLE,
                     fmt::format("flight recorder: can not write {}", *path),
                     errno);
}

}  // namespace

Result<std::unique_ptr<Flight>> Flight::create(const std::string& dir,
                                               int32_t rank, int32_t size,
                                               const Names& names) {
  std::string path;
  ALQ_ASSIGN(int fd, new_file(dir, rank, &path));
  // Blocks are taken now: a full disk must not be found by a store.
  QuietFileLimit quiet;
  int error = posix_fallocate(fd, 0, sizeof(FlightFile));
  void* data = MAP_FAILED;
  if (error == 0) {
    data = mmap(nullptr, sizeof(FlightFile), PROT_READ | PROT_WRITE, MAP_SHARED,
                fd, 0);
    if (data == MAP_FAILED) error = errno;
  }
  ::close(fd);
  if (error != 0) {
    unlink(path.c_str());
    return errno_error(ALQ_RESOURCE_EXHAUSTED,
                       fmt::format("flight recorder: no {} bytes for {}",
                                   sizeof(FlightFile), path),
                       error);
  }
  auto* file = static_cast<FlightFile*>(data);
  FlightHeader& header = file->header;
  header.rank = rank;
  header.size = size;
  header.pid = getpid();
  header.start_time = process_info(getpid()).start_time;
  header.opened_ns = now_ns();
  char host[64] = {};
  if (gethostname(host, sizeof host - 1) == 0) copy_text(header.host, host);
  for (size_t i = 0; i < std::min(names.kinds.size(), std::size(header.kinds));
       ++i) {
    copy_text(header.kinds[i], names.kinds[i].c_str());
  }
  for (size_t i = 0;
       i < std::min(names.dtypes.size(), std::size(header.dtypes)); ++i) {
    copy_text(header.dtypes[i], names.dtypes[i].c_str());
  }
  std::memcpy(header.magic, kFlightMagic, sizeof header.magic);
  return std::unique_ptr<Flight>(new Flight(file));
}

Flight::~Flight() { munmap(file_, sizeof(FlightFile)); }

uint32_t Flight::add_group(const std::string& name,
                           std::span<const int32_t> ranks) {
  uint32_t id = std::min(groups_.fetch_add(1), kFlightGroups - 1);
  FlightGroup& group = file_->groups[id];
  copy_text(group.name, name.c_str());
  size_t n = std::min(ranks.size(), std::size(group.ranks));
  group.size = static_cast<int32_t>(n);
  for (size_t i = 0; i < n; ++i) {
    group.ranks[i] = static_cast<int16_t>(ranks[i]);
  }
  file_->header.groups.store(std::min(groups_.load(), kFlightGroups));
  return id;
}

uint64_t Flight::begin(const FlightCall& call) {
  uint64_t order = order_.fetch_add(1, std::memory_order_relaxed) + 1;
  FlightRecord& record = file_->records[order % kFlightRecords];
  record.order = 0;  // not to be read while it changes
  record.number = call.number;
  record.issued_ns = now_ns();
  record.ended_ns = 0;
  record.count = call.count;
  record.group = call.group;
  record.kind = call.kind;
  record.dtype = call.dtype;
  record.root = call.root;
  record.state.store(kFlightIssued, std::memory_order_relaxed);
  copy_text(record.label, call.label);
  record.order = order;
  return order;
}

void Flight::set(uint64_t order, FlightState state) {
  FlightRecord& record = file_->records[order % kFlightRecords];
  if (record.order != order) return;  // overwritten by a later one
  if (state >= kFlightDone) record.ended_ns = now_ns();
  record.state.store(state, std::memory_order_relaxed);
}

void Flight::fail(const Status& error) {
  if (failed_.exchange(true)) return;
  FlightHeader& header = file_->header;
  header.error_code = error.code();
  header.error_rank = error.rank();
  header.error_ns = now_ns();
  copy_text(header.error, error.message().c_str());
  header.ending.store(kFlightFailed);
}

void Flight::close() {
  uint32_t open = kFlightOpen;
  file_->header.ending.compare_exchange_strong(open, kFlightClosed);
}

}  // namespace aliquot
