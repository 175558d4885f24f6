#include "tests/doubles/nccl/shared.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>

namespace aliquot::nccl_double {

bool same(const Descriptor& a, const Descriptor& b) {
  return a.kind == b.kind && a.type == b.type && a.op == b.op &&
         a.root == b.root && a.count == b.count;
}

std::string text(const Descriptor& d) {
  static const char* const kKinds[] = {"all_reduce", "reduce", "broadcast",
                                       "reduce_scatter", "all_gather"};
  char out[120];
  std::snprintf(out, sizeof out, "%s(%llu x type %d, op %d, root %d)",
                kKinds[d.kind % 5], static_cast<unsigned long long>(d.count),
                d.type, d.op, d.root);
  return out;
}

Shared* attach(const std::string& name, int rank) {
  int fd = shm_open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) return nullptr;
  void* at = MAP_FAILED;
  if (ftruncate(fd, sizeof(Shared)) == 0) {
    at = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
              0);
  }
  close(fd);
  if (at == MAP_FAILED) return nullptr;
  auto* shared = static_cast<Shared*>(at);  // zero is its first state
  shared->slots[rank].attached.store(1);
  return shared;
}

void detach_name(const std::string& name) { shm_unlink(name.c_str()); }

}  // namespace aliquot::nccl_double
