/* Preloaded: counts allocations of at least 4 KiB made for the library, seen
 * from outside it.
 *
 * A thread counts while its state says it is inside the library; a thread that
 * never said anything is the library's own and always counts. */
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PROBE_EXPORT __attribute__((visibility("default")))
#define LARGE 4096u

enum { kUnknown, kOutside, kInside };
static _Thread_local int state;
static atomic_long large_count, all_count, largest;

PROBE_EXPORT void alloc_probe_inside(int inside) {
  state = inside ? kInside : kOutside;
}

/* Counts since the last call, then starts again at 0. */
PROBE_EXPORT void alloc_probe_take(long* large, long* all, long* most) {
  *large = atomic_exchange(&large_count, 0);
  *all = atomic_exchange(&all_count, 0);
  *most = atomic_exchange(&largest, 0);
}

static void note(size_t bytes) {
  if (state == kOutside) return;
  atomic_fetch_add(&all_count, 1);
  if (bytes < LARGE) return;
  atomic_fetch_add(&large_count, 1);
  long before = atomic_load(&largest);
  while (before < (long)bytes &&
         !atomic_compare_exchange_weak(&largest, &before, (long)bytes)) {
  }
}

/* glibc's own entry points, so that nothing has to be looked up first. */
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

PROBE_EXPORT void* malloc(size_t bytes) {
  note(bytes);
  return __libc_malloc(bytes);
}

PROBE_EXPORT void* calloc(size_t n, size_t bytes) {
  note(n > SIZE_MAX / (bytes == 0 ? 1 : bytes) ? SIZE_MAX / 2 : n * bytes);
  return __libc_calloc(n, bytes);
}

PROBE_EXPORT void* realloc(void* old, size_t bytes) {
  note(bytes);
  return __libc_realloc(old, bytes);
}

PROBE_EXPORT void* memalign(size_t align, size_t bytes) {
  note(bytes);
  return __libc_memalign(align, bytes);
}

PROBE_EXPORT void* aligned_alloc(size_t align, size_t bytes) {
  return memalign(align, bytes);
}

PROBE_EXPORT int posix_memalign(void** out, size_t align, size_t bytes) {
  void* memory = memalign(align, bytes);
  if (memory == NULL) return ENOMEM;
  *out = memory;
  return 0;
}

static void* map(void* at, size_t bytes, int prot, int flags, int fd,
                 off_t offset) {
  note(bytes);
  /* syscall() sets errno and gives -1, which is MAP_FAILED. */
  return (void*)syscall(SYS_mmap, at, bytes, prot, flags, fd, offset);
}

PROBE_EXPORT void* mmap(void* at, size_t bytes, int prot, int flags, int fd,
                        off_t offset) {
  return map(at, bytes, prot, flags, fd, offset);
}

PROBE_EXPORT void* mmap64(void* at, size_t bytes, int prot, int flags, int fd,
                          off64_t offset) {
  return map(at, bytes, prot, flags, fd, offset);
}
