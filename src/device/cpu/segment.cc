#include "device/cpu/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "base/file_limit.h"

namespace aliquot {
namespace {

constexpr int64_t kPage = 4096;
constexpr uint64_t kMagic = 0x746e656d67655371;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// In the last page, behind the data.
struct Trailer {
  uint64_t magic, nonce;
  int64_t bytes;
};

int64_t round_up(int64_t bytes, int64_t to) {
  return (bytes + to - 1) / to * to;
}

// What this process has created or mapped, by nonce.
struct Registry {
  std::mutex mutex;
  std::unordered_map<uint64_t, std::weak_ptr<Segment>> segments;
};
Registry& registry() {
  static auto* instance = new Registry;  // outlives static destructors
  return *instance;
}

int64_t available_memory() {
  FILE* file = fopen("/proc/meminfo", "re");
  if (file == nullptr) return INT64_MAX;
  char line[128];
  long long kib = -1;
  while (fgets(line, sizeof line, file) != nullptr) {
    if (sscanf(line, "MemAvailable: %lld kB", &kib) == 1) break;
  }
  fclose(file);
  return kib < 0 ? INT64_MAX : int64_t{kib} * 1024;
}

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Never standard input or output, where those are closed: what the host prints
// would be written into it.  -1 and errno: there is none.
int memory_file() {
  Fd fd(memfd_create("aliquot", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() > 2 || fd.get() < 0) return fd.release();
  return fcntl(fd.get(), F_DUPFD_CLOEXEC, 3);
}

void touch_pages(std::byte* data, int64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(data, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) == 0) {
    return;
  }
#endif
  for (int64_t at = 0; at < bytes; at += kPage) {
    auto* byte = reinterpret_cast<volatile unsigned char*>(data + at);
    *byte = 0;
  }
}

}  // namespace

uint64_t random_nonce() {
  uint64_t nonce = 0;
  while (nonce == 0) {
    if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce) nonce = 0;
  }
  return nonce;
}

void Segment::touch(int64_t nth, int64_t of) {
  int64_t pages = round_up(bytes(), kPage) / kPage;
  int64_t begin = pages * nth / of, end = pages * (nth + 1) / of;
  touch_pages(data_ + begin * kPage, (end - begin) * kPage);
}

Result<std::shared_ptr<Segment>> Segment::create(int64_t bytes,
                                                 const std::string& label,
                                                 bool touch) {
  if (bytes <= 0) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "memory \"{}\": {} bytes asked; ask for at least 1",
                      label, bytes);
  }
  int64_t free_bytes = available_memory();
  if (bytes > free_bytes - kPage) {
    return make_error(ALQ_RESOURCE_EXHAUSTED,
                      "memory \"{}\": {} bytes asked, {} bytes are free on "
                      "this host; ask for less or free some",
                      label, bytes, free_bytes);
  }
  Fd fd(memory_file());
  if (fd.get() < 0) {
    return errno_error(ALQ_RESOURCE_EXHAUSTED,
                       fmt::format("memory \"{}\": memfd_create", label),
                       errno);
  }
  int64_t mapped = round_up(bytes, kPage) + kPage;
  QuietFileLimit quiet;
  if (ftruncate(fd.get(), mapped) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return errno_error(
        ALQ_RESOURCE_EXHAUSTED,
        fmt::format("memory \"{}\": {} bytes asked, {} bytes are free on this "
                    "host",
                    label, bytes, free_bytes),
        errno);
  }
  void* data = mmap(nullptr, static_cast<size_t>(mapped),
                    PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return errno_error(
        ALQ_RESOURCE_EXHAUSTED,
        fmt::format("memory \"{}\": mmap of {} bytes", label, mapped), errno);
  }
  std::shared_ptr<Segment> segment(new Segment);
  segment->data_ = static_cast<std::byte*>(data);
  segment->mapped_ = mapped;
  segment->fd_ = fd.release();
  segment->ref_ = {getpid(), segment->fd_, random_nonce(), bytes};
  madvise(data, static_cast<size_t>(mapped), MADV_HUGEPAGE);
  if (touch) touch_pages(segment->data_, mapped);
  Trailer trailer{kMagic, segment->ref_.nonce, bytes};
  std::memcpy(segment->data_ + mapped - kPage, &trailer, sizeof trailer);

  std::lock_guard lock(registry().mutex);
  registry().segments[segment->ref_.nonce] = segment;
  return segment;
}

Result<std::shared_ptr<Segment>> Segment::attach(const SegmentRef& ref) {
  std::shared_ptr<Segment> known;  // let go of outside the lock
  std::lock_guard lock(registry().mutex);
  auto found = registry().segments.find(ref.nonce);
  if (found != registry().segments.end()) {
    known = found->second.lock();
    if (known != nullptr && known->bytes() == ref.bytes) return known;
  }
  std::string path = fmt::format("/proc/{}/fd/{}", ref.pid, ref.fd);
  Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) {
    return errno_error(
        ALQ_UNAVAILABLE,
        fmt::format("can not open memory of process {} ({})", ref.pid, path),
        errno);
  }
  struct stat info;
  int64_t mapped = round_up(ref.bytes, kPage) + kPage;
  int seals = fcntl(fd.get(), F_GET_SEALS);
  if (ref.bytes <= 0 || fstat(fd.get(), &info) != 0 || info.st_size != mapped ||
      seals < 0 || (seals & kSeals) != kSeals) {
    return make_error(ALQ_UNAVAILABLE,
                      "{} is not the memory segment of {} bytes that process "
                      "{} announced; it may be in another PID namespace",
                      path, ref.bytes, ref.pid);
  }
  void* data = mmap(nullptr, static_cast<size_t>(mapped),
                    PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return errno_error(ALQ_RESOURCE_EXHAUSTED,
                       fmt::format("mmap of {} bytes of {}", mapped, path),
                       errno);
  }
  std::shared_ptr<Segment> segment(new Segment);
  segment->data_ = static_cast<std::byte*>(data);
  segment->mapped_ = mapped;
  segment->ref_ = ref;
  Trailer trailer;
  std::memcpy(&trailer, segment->data_ + mapped - kPage, sizeof trailer);
  if (trailer.magic != kMagic || trailer.nonce != ref.nonce ||
      trailer.bytes != ref.bytes) {
    segment->ref_.nonce = 0;
    return make_error(ALQ_UNAVAILABLE,
                      "{} does not carry the nonce that process {} announced",
                      path, ref.pid);
  }
  registry().segments[ref.nonce] = segment;
  return segment;
}

Segment::~Segment() {
  if (ref_.nonce != 0) {
    std::lock_guard lock(registry().mutex);
    auto found = registry().segments.find(ref_.nonce);
    // Another mapping of it may have been made since the last owner let go.
    if (found != registry().segments.end() && found->second.expired()) {
      registry().segments.erase(found);
    }
  }
  munmap(data_, static_cast<size_t>(mapped_));
  if (fd_ >= 0) close(fd_);
  if (hook_) hook_(ref_.nonce);
}

void SegmentTable::add(std::shared_ptr<Segment> segment, bool owned) {
  std::lock_guard lock(mutex_);
  if (owned) {
    segment->on_free([hook = hook_](uint64_t nonce) {
      std::shared_ptr<void> last;  // goes after the lock
      std::lock_guard hook_lock(hook->mutex);
      if (hook->call) last = hook->call(nonce);
    });
  }
  segments_[reinterpret_cast<uintptr_t>(segment->data())] = std::move(segment);
}

void SegmentTable::remove(const std::byte* data) {
  std::shared_ptr<Segment> last;  // freed outside the lock
  std::lock_guard lock(mutex_);
  auto found = segments_.find(reinterpret_cast<uintptr_t>(data));
  if (found == segments_.end()) return;
  last = std::move(found->second);
  segments_.erase(found);
}

std::shared_ptr<Segment> SegmentTable::find(const void* data,
                                            int64_t bytes) const {
  auto begin = reinterpret_cast<uintptr_t>(data);
  std::lock_guard lock(mutex_);
  auto after = segments_.upper_bound(begin);
  if (after == segments_.begin()) return nullptr;
  const auto& segment = std::prev(after)->second;
  uintptr_t end =
      std::prev(after)->first + static_cast<uintptr_t>(segment->bytes());
  if (begin >= end || static_cast<uintptr_t>(bytes) > end - begin) {
    return nullptr;
  }
  return segment;
}

void SegmentTable::set_on_free(OnFree hook) {
  std::lock_guard lock(hook_->mutex);
  hook_->call = std::move(hook);
}

}  // namespace aliquot
