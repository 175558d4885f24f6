// Memory of the stand-in: fences on both sides, poison before the first write
// and after the free, and copies between all kinds.
#include "tests/doubles/cuda/memory.h"

#include <sched.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>

#include "tests/doubles/cuda/stream.h"

namespace aliquot::cuda_double {
namespace {

constexpr size_t kFence = 512;
constexpr unsigned char kFenceByte = 0xa5, kPoison = 0xff;
constexpr size_t kTotal = size_t{16} << 30;  // of one device
constexpr size_t kKept = size_t{64} << 20;   // of freed memory

struct Heap {
  std::map<uint64_t, Block> live, freed;  // by begin
  std::deque<uint64_t> freed_order;
  size_t live_bytes = 0, freed_bytes = 0;
};

Heap& heap() {
  static auto* h = new Heap;
  return *h;
}

size_t rounded(size_t bytes) { return (bytes + kFence - 1) / kFence * kFence; }

unsigned char* pointer(uint64_t address) {
  return reinterpret_cast<unsigned char*>(address);
}

bool all(const unsigned char* p, size_t bytes, unsigned char value) {
  for (size_t i = 0; i < bytes; ++i) {
    if (p[i] != value) return false;
  }
  return true;
}

void check_fences(uint64_t begin, const Block& block) {
  unsigned char* p = pointer(begin);
  size_t behind = rounded(block.bytes) - block.bytes + kFence;
  if (!all(p - kFence, kFence, kFenceByte) ||
      !all(p + block.bytes, behind, kFenceByte)) {
    violation("something was written outside of a block of %zu bytes",
              block.bytes);
  }
}

void check_poison(uint64_t begin, const Block& block) {
  if (!all(pointer(begin), block.bytes, kPoison)) {
    violation("a block of %zu bytes was written to after it was freed",
              block.bytes);
  }
}

CUresult allocate(size_t bytes, bool host, uint64_t* out) {
  Lock lock(state().mutex);
  const char* name = host ? "cuMemHostAlloc" : "cuMemAlloc";
  ContextImpl* context = current_context();
  if (context == nullptr) return kInvalidContext;
  if (out == nullptr || bytes == 0) return kInvalidValue;
  count(host ? "host_alloc" : "alloc");
  if (CUresult failed = injected(name, context)) return failed;
  if (CUresult sticky = context->sticky) return sticky;
  if (CUresult unsafe = check_unsafe(name)) return unsafe;
  if (bytes > kTotal - heap().live_bytes) return kOutOfMemory;
  size_t whole = rounded(bytes) + 2 * kFence;
  auto* raw = static_cast<unsigned char*>(std::aligned_alloc(kFence, whole));
  if (raw == nullptr) return kOutOfMemory;
  std::memset(raw, kFenceByte, whole);
  std::memset(raw + kFence, kPoison, bytes);
  *out = reinterpret_cast<uint64_t>(raw + kFence);
  heap().live[*out] = {bytes, host, context->device};
  heap().live_bytes += bytes;
  return kSuccess;
}

void drop_oldest() {
  uint64_t begin = heap().freed_order.front();
  heap().freed_order.pop_front();
  auto it = heap().freed.find(begin);
  check_poison(begin, it->second);
  heap().freed_bytes -= it->second.bytes;
  heap().freed.erase(it);
  std::free(pointer(begin) - kFence);
}

CUresult release(uint64_t begin, bool host) {
  if (ContextImpl* context = current_context(); state().free_waits) {
    while (context != nullptr && context->items != 0) sched_yield();
  }
  Lock lock(state().mutex);
  count("free");
  auto it = heap().live.find(begin);
  if (it == heap().live.end() || it->second.host != host) {
    violation("free of what is not allocated");
    return kInvalidValue;
  }
  if (CUresult unsafe = check_unsafe("free")) return unsafe;
  check_fences(begin, it->second);
  // At once: whoever frees must know that nothing uses it.
  std::memset(pointer(begin), kPoison, it->second.bytes);
  heap().freed[begin] = it->second;
  heap().freed_order.push_back(begin);
  heap().live_bytes -= it->second.bytes;
  heap().freed_bytes += it->second.bytes;
  heap().live.erase(it);
  while (heap().freed_bytes > kKept) drop_oldest();
  return kSuccess;
}

bool holds(const std::map<uint64_t, Block>& blocks, uint64_t address,
           std::map<uint64_t, Block>::const_iterator* at) {
  *at = blocks.upper_bound(address);
  if (*at == blocks.begin()) return false;
  --*at;
  return address < (*at)->first + (*at)->second.bytes;
}

// Is [address, address + bytes) memory that streams may touch at any time?
// Pageable memory is not.
CUresult check_range(uint64_t address, size_t bytes, bool* pageable) {
  uint64_t begin = 0;
  if (is_freed(address)) {
    violation("copy from or to freed memory");
    return kInvalidValue;
  }
  const Block* block = find_block(address, &begin);
  *pageable = *pageable || block == nullptr;
  if (block != nullptr && address + bytes > begin + block->bytes) {
    return kInvalidValue;
  }
  return kSuccess;
}

CUresult copy_now(uint64_t to, uint64_t from, size_t bytes) {
  if (CUresult unsafe = check_unsafe("cuMemcpy")) return unsafe;
  count("memcpy");
  count("host_sync");
  bool pageable = false;
  {
    Lock lock(state().mutex);
    if (CUresult bad = check_range(to, bytes, &pageable)) return bad;
    if (CUresult bad = check_range(from, bytes, &pageable)) return bad;
  }
  // The legacy stream waits for blocking streams alone; all of ours are not.
  std::memcpy(pointer(to), pointer(from), bytes);
  return kSuccess;
}

}  // namespace

const Block* find_block(uint64_t address, uint64_t* begin) {
  Lock lock(state().mutex);
  std::map<uint64_t, Block>::const_iterator it;
  if (!holds(heap().live, address, &it)) return nullptr;
  *begin = it->first;
  return &it->second;
}

bool is_freed(uint64_t address) {
  Lock lock(state().mutex);
  std::map<uint64_t, Block>::const_iterator it;
  return holds(heap().freed, address, &it);
}

void check_memory() {
  Lock lock(state().mutex);
  for (const auto& [begin, block] : heap().live) check_fences(begin, block);
  for (const auto& [begin, block] : heap().freed) check_poison(begin, block);
}

}  // namespace aliquot::cuda_double

using namespace aliquot::cuda_double;

DOUBLE_API void double_check_memory(void) { check_memory(); }

DOUBLE_API int64_t double_live_bytes(void) {
  Lock lock(state().mutex);
  return static_cast<int64_t>(heap().live_bytes);
}

DOUBLE_API CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  return allocate(bytes, false, out);
}
DOUBLE_API CUresult cuMemFree_v2(CUdeviceptr p) { return release(p, false); }

DOUBLE_API CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  if (flags > 7) return kInvalidValue;
  uint64_t address = 0;
  if (CUresult failed = allocate(bytes, true, &address)) return failed;
  *out = pointer(address);
  return kSuccess;
}
DOUBLE_API CUresult cuMemFreeHost(void* p) {
  return release(reinterpret_cast<uint64_t>(p), true);
}

DOUBLE_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* p,
                                                 unsigned) {
  uint64_t begin = 0;
  *out = reinterpret_cast<uint64_t>(p);
  const Block* block = find_block(*out, &begin);
  return block != nullptr && block->host ? kSuccess : kInvalidValue;
}

DOUBLE_API CUresult cuMemGetInfo_v2(size_t* left, size_t* total) {
  Lock lock(state().mutex);
  *total = kTotal;
  *left = kTotal - heap().live_bytes;
  return kSuccess;
}

// 2: memory type (1 host, 2 device); 9: device.
DOUBLE_API CUresult cuPointerGetAttribute(void* out, int attribute,
                                          CUdeviceptr p) {
  Lock lock(state().mutex);
  uint64_t begin = 0;
  const Block* block = find_block(p, &begin);
  if (block == nullptr) return kInvalidValue;
  if (attribute != 2 && attribute != 9) return kNotSupported;
  int value = attribute == 9 ? block->device : block->host ? 1 : 2;
  std::memcpy(out, &value, sizeof value);
  return kSuccess;
}

DOUBLE_API CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char value,
                                    size_t bytes, CUstream stream) {
  count("memset");
  if (current_context() == nullptr) return kInvalidContext;
  {
    Lock lock(state().mutex);
    bool pageable = false;
    if (CUresult bad = check_range(p, bytes, &pageable)) return bad;
    if (pageable) return kInvalidValue;
  }
  return submit(stream, "cuMemsetD8Async",
                [=] { std::memset(pointer(p), value, bytes); });
}

DOUBLE_API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from,
                                  size_t bytes, CUstream stream) {
  count("memcpy");
  if (current_context() == nullptr) return kInvalidContext;
  bool pageable = false;
  {
    Lock lock(state().mutex);
    if (CUresult bad = check_range(to, bytes, &pageable)) return bad;
    if (CUresult bad = check_range(from, bytes, &pageable)) return bad;
    if (mutate("short_copy") && bytes > 0) --bytes;
  }
  auto copy = [=] { std::memmove(pointer(to), pointer(from), bytes); };
  CUresult result = submit(stream, "cuMemcpyAsync", copy);
  if (result != kSuccess || !pageable) return result;
  // The caller may use pageable memory again when this returns.
  count("host_sync");
  if (CUresult unsafe = check_unsafe("copy of pageable memory")) return unsafe;
  find_stream(stream, "cuMemcpyAsync")->drain();
  return kSuccess;
}

DOUBLE_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from,
                                    size_t bytes) {
  return copy_now(to, reinterpret_cast<uint64_t>(from), bytes);
}
DOUBLE_API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  return copy_now(reinterpret_cast<uint64_t>(to), from, bytes);
}
DOUBLE_API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy_now(to, from, bytes);
}
