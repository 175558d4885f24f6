#include "comm/mem/fenced_copy.h"

#include <dlfcn.h>

namespace aliquot::mem {
namespace {

#if defined(__x86_64__) && defined(__linux__)

// The kernel's view of a thread: struct rseq of linux/rseq.h.
struct Area {
  uint32_t cpu_id_start;
  int32_t cpu_id;  // negative: not registered
  uint64_t sequence;
};

// Where the C library keeps a thread's area, from the thread pointer; 0: none.
ptrdiff_t area_offset() {
  static const ptrdiff_t offset = [] {
    auto* at =
        static_cast<const ptrdiff_t*>(dlsym(RTLD_DEFAULT, "__rseq_offset"));
    auto* size =
        static_cast<const unsigned*>(dlsym(RTLD_DEFAULT, "__rseq_size"));
    return at == nullptr || size == nullptr || *size == 0 ? 0 : *at;
  }();
  return offset;
}

Area* area() {
  auto* thread = static_cast<std::byte*>(__builtin_thread_pointer());
  return reinterpret_cast<Area*>(thread + area_offset());
}

enum Outcome : uint64_t { kCopied, kClosed, kInterrupted };

// The sequence begins at 1, ends before 2 and is left for 4, which follows the
// signature that glibc registers, when the kernel interrupted it.  64 bytes at
// a time go through the caches at 7 and past them at 8, the rest at 9.
uint64_t copy_once(const std::atomic<uint32_t>& closed, const FencedCopy& copy,
                   bool past_caches) {
  Area* here = area();
  std::byte* to = copy.to;
  const std::byte* from = copy.from;
  int64_t bytes = copy.bytes;
  uint64_t outcome;
  asm volatile(
      ".pushsection __rseq_cs, \"aw\"\n\t"
      ".balign 32\n"
      "3:\n\t"
      ".long 0, 0\n\t"
      ".quad 1f, 2f - 1f, 4f\n\t"
      ".popsection\n\t"
      ".pushsection __rseq_failure, \"ax\"\n\t"
      ".byte 0x0f, 0xb9, 0x3d\n\t"
      ".long 0x53053053\n"
      "4:\n\t"
      "movl $2, %k[outcome]\n\t"
      "jmp 6f\n\t"
      ".popsection\n\t"
      "leaq 3b(%%rip), %q[outcome]\n\t"
      "movq %q[outcome], %[sequence]\n"
      "1:\n\t"
      "movl %[closed], %k[outcome]\n\t"
      "testl %k[outcome], %k[outcome]\n\t"
      "jnz 5f\n\t"
      "subq $64, %%rcx\n\t"
      "jb 9f\n\t"
      "testl %[past_caches], %[past_caches]\n\t"
      "jnz 8f\n"
      "7:\n\t"
      "vmovups (%%rsi), %%ymm0\n\t"
      "vmovups 32(%%rsi), %%ymm1\n\t"
      "vmovups %%ymm0, (%%rdi)\n\t"
      "vmovups %%ymm1, 32(%%rdi)\n\t"
      "addq $64, %%rsi\n\t"
      "addq $64, %%rdi\n\t"
      "subq $64, %%rcx\n\t"
      "jae 7b\n\t"
      "jmp 9f\n"
      "8:\n\t"
      "vmovups (%%rsi), %%ymm0\n\t"
      "vmovups 32(%%rsi), %%ymm1\n\t"
      "vmovntps %%ymm0, (%%rdi)\n\t"
      "vmovntps %%ymm1, 32(%%rdi)\n\t"
      "addq $64, %%rsi\n\t"
      "addq $64, %%rdi\n\t"
      "subq $64, %%rcx\n\t"
      "jae 8b\n"
      "9:\n\t"
      "addq $64, %%rcx\n\t"
      "rep movsb\n"
      "2:\n\t"
      "xorl %k[outcome], %k[outcome]\n\t"
      "jmp 6f\n"
      "5:\n\t"
      "movl $1, %k[outcome]\n"
      "6:\n\t"
      "movq $0, %[sequence]\n\t"
      "vzeroupper\n\t"
      : [outcome] "=&r"(outcome), [sequence] "=m"(here->sequence), "+&D"(to),
        "+&S"(from), "+&c"(bytes)
      : [closed] "m"(closed), [past_caches] "r"(static_cast<int>(past_caches))
      // vzeroupper takes a part of each from a caller that uses AVX.
      : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6",
        "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",
        "xmm15");
  return outcome;
}

#endif

}  // namespace

#if defined(__x86_64__) && defined(__linux__)

bool can_fence_copies() {
  return __builtin_cpu_supports("avx") && area_offset() != 0 &&
         area()->cpu_id >= 0;
}

bool fenced_copy(const std::atomic<uint32_t>& closed, const FencedCopy& copy) {
  const bool past_caches =
      copy.past_caches && reinterpret_cast<uintptr_t>(copy.to) % 32 == 0;
  uint64_t outcome;
  do {
    outcome = copy_once(closed, copy, past_caches);
  } while (outcome == kInterrupted);
  return outcome == kCopied;
}

#else

bool can_fence_copies() { return false; }

bool fenced_copy(const std::atomic<uint32_t>&, const FencedCopy&) {
  return false;
}

#endif

}  // namespace aliquot::mem
