#include "tools/bench_floor.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace aliquot::tools {
namespace {

constexpr int64_t kSmallBytes = 16 * 1024;
constexpr int64_t kBlock = 8192;   // elements; stays in the first two caches
constexpr int64_t kPushed = 2048;  // stays in the first

// out = a + b; the same loop for every instruction set.
inline __attribute__((always_inline)) void add_loop(float* out, const float* a,
                                                    const float* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = a[i] + b[i];
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void add_avx2(float* out, const float* a,
                                              const float* b, int64_t n) {
  add_loop(out, a, b, n);
}
__attribute__((target("avx512f,prefer-vector-width=512"))) void add_avx512(
    float* out, const float* a, const float* b, int64_t n) {
  add_loop(out, a, b, n);
}
#endif
void add_base(float* out, const float* a, const float* b, int64_t n) {
  add_loop(out, a, b, n);
}

using Add = void (*)(float*, const float*, const float*, int64_t);
Add choose_add() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return add_avx512;
  if (__builtin_cpu_supports("avx2")) return add_avx2;
#endif
  return add_base;
}

const Add kAdd = choose_add();

void copy(float* to, const float* from, int64_t n) {
  std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
}

// out = the sum over ranks of src + at, in rank order.
void sum_ranks(Op op, const FloorBuffers& b, float* out, int64_t at,
               int64_t n) {
  int size = b.team->size();
  std::array<const float*, kMostRanks> src;
  for (int p = 0; p < size; ++p) {
    src[static_cast<size_t>(p)] = b.src(op, p) + at;
  }
  for (int64_t i = 0; i < n; i += kBlock) {
    int64_t m = std::min(kBlock, n - i);
    if (size == 1)
      std::memmove(out + i, src[0] + i, static_cast<size_t>(m) * 4);
    if (size >= 2) kAdd(out + i, src[0] + i, src[1] + i, m);
    for (int p = 2; p < size; ++p) {
      kAdd(out + i, out + i, src[static_cast<size_t>(p)] + i, m);
    }
  }
}

// As sum_ranks where out is one of the sources: by way of a block, for with
// more than two ranks the first sum would overwrite a later source.
void sum_ranks_in_place(Op op, const FloorBuffers& b, float* out, int64_t at,
                        int64_t n) {
  if (b.team->size() <= 2) return sum_ranks(op, b, out, at, n);
  float block[kBlock];
  for (int64_t i = 0; i < n; i += kBlock) {
    int64_t m = std::min(kBlock, n - i);
    sum_ranks(op, b, block, at + i, m);
    copy(out + i, block, m);
  }
}

void all_reduce_small(Team& team, const FloorBuffers& b) {
  float sum[kSmallBytes / sizeof(float)];
  bool copies = b.in_place;
  float* out = copies ? sum : b.dst(Op::kAllReduce, team.rank());
  team.barrier();
  sum_ranks(Op::kAllReduce, b, out, 0, b.elements);
  team.barrier();
  if (copies) copy(b.dst(Op::kAllReduce, team.rank()), sum, b.elements);
}

// Sums into the own dst, and from there, while it is in the first cache, into
// the others'.
void sum_for_all(const FloorBuffers& b, int64_t at, int64_t count) {
  const Team& team = *b.team;
  auto sum = b.in_place ? sum_ranks_in_place : sum_ranks;
  float* mine = b.dst(Op::kAllReduce, team.rank());
  for (int64_t i = at; i < at + count; i += kPushed) {
    int64_t m = std::min(kPushed, at + count - i);
    sum(Op::kAllReduce, b, mine + i, i, m);
    for (int step = 1; step < team.size(); ++step) {
      int p = (team.rank() + step) % team.size();
      copy(b.dst(Op::kAllReduce, p) + i, mine + i, m);
    }
  }
}

void all_reduce(Team& team, const FloorBuffers& b) {
  if (b.elements * static_cast<int64_t>(sizeof(float)) <= kSmallBytes) {
    return all_reduce_small(team, b);
  }
  int64_t n = b.elements, size = team.size();
  auto begin = [&](int64_t r) { return n * r / size; };
  float* mine = b.dst(Op::kAllReduce, team.rank());
  int64_t at = begin(team.rank()), count = begin(team.rank() + 1) - at;
  team.barrier();
  if (b.pushes) {
    sum_for_all(b, at, count);
    return team.barrier();
  }
  auto sum = b.in_place ? sum_ranks_in_place : sum_ranks;
  sum(Op::kAllReduce, b, mine + at, at, count);
  team.barrier();
  for (int step = 1; step < team.size(); ++step) {
    int p = (team.rank() + step) % team.size();
    copy(mine + begin(p), b.dst(Op::kAllReduce, p) + begin(p),
         begin(p + 1) - begin(p));
  }
  team.barrier();
}

// Every rank copies what it needs from every other; offset(p) is where in p's
// source.
template <typename Offset>
void exchange(Team& team, Op op, const FloorBuffers& b, Offset offset) {
  int64_t part = b.elements / team.size();
  float* mine = b.dst(op, team.rank());
  team.barrier();
  for (int step = 0; step < team.size(); ++step) {
    int p = (team.rank() + step) % team.size();
    float* to = mine + part * p;
    const float* from = b.src(op, p) + offset(part);
    if (to != from) copy(to, from, part);
  }
  team.barrier();
}

void reduce_scatter(Team& team, const FloorBuffers& b) {
  int64_t part = b.elements / team.size();
  float* mine = b.dst(Op::kReduceScatter, team.rank());
  team.barrier();
  auto sum = b.in_place ? sum_ranks_in_place : sum_ranks;
  sum(Op::kReduceScatter, b, mine, part * team.rank(), part);
  team.barrier();
}

void broadcast(Team& team, const FloorBuffers& b) {
  team.barrier();
  if (team.rank() != 0) {
    copy(b.dst(Op::kBroadcast, team.rank()), b.dst(Op::kBroadcast, 0),
         b.elements);
  }
  team.barrier();
}

}  // namespace

void add_floats(float* out, const float* a, const float* b, int64_t n) {
  kAdd(out, a, b, n);
}

float* FloorBuffers::src(Op op, int rank) const {
  float* base = team->memory(rank);
  bool own_part = in_place && op == Op::kAllGather;
  return own_part ? base + elements / team->size() * rank : base;
}

float* FloorBuffers::dst(Op op, int rank) const {
  float* base = team->memory(rank);
  if (op == Op::kBroadcast) return base;
  if (!in_place) return base + elements;
  bool own_part = op == Op::kReduceScatter;
  return own_part ? base + elements / team->size() * rank : base;
}

void floor_op(Team& team, Op op, const FloorBuffers& b) {
  switch (op) {
    case Op::kAllReduce: return all_reduce(team, b);
    case Op::kAllGather:
      return exchange(team, op, b, [](int64_t) { return int64_t{0}; });
    case Op::kAllToAll:
      return exchange(team, op, b,
                      [&](int64_t part) { return part * team.rank(); });
    case Op::kReduceScatter: return reduce_scatter(team, b);
    case Op::kBroadcast: return broadcast(team, b);
    case Op::kBarrier: return team.barrier();
  }
}

}  // namespace aliquot::tools
