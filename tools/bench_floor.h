// The bare loops that collectives are compared with: the same reads and writes
// on shared memory, the same split of work among ranks, plain compiled loops
// and a spinning barrier, and nothing else: no descriptors, no checks, no
// deadlines.
//
//   all-reduce, S bytes, P ranks: read S and write S, into all ranks' memory;
//   where the library's buffers are private, which no peer can write into: read
//   S, write S/P, then read and write (P-1)/P S.  Below 16 KiB every rank sums
//   everything, which needs one meeting less.
#pragma once

#include <cstdint>

#include "tools/bench_team.h"

namespace aliquot::tools {

enum class Op {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kBarrier,
};

// Where the ranks' buffers lie in the team's memory.  In place, dst is src (or
// src is dst's own part), as in the library.
struct FloorBuffers {
  const Team* team;
  int64_t elements;  // of the larger buffer of one rank
  bool in_place;
  bool pushes;  // results go into all ranks' memory
  float* src(Op op, int rank) const;
  float* dst(Op op, int rank) const;
};

// out = a + b, as the loops add; out may be one of them.
void add_floats(float* out, const float* a, const float* b, int64_t n);

// One operation; all ranks call it.  Broadcast's root is rank 0.
void floor_op(Team& team, Op op, const FloorBuffers& buffers);

}  // namespace aliquot::tools
