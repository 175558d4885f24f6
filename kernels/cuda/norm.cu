// The reproducible sum of squares of arithmetic/bins.h: one read (two of f64).
// A thread sums in registers (window.h), and adds what it has to its block's
// words in shared memory, the block to the bins in global memory, by integer
// atomics with carries: exact, so neither the grid nor the order of blocks
// leaves a trace.
// Cost: per block and thread about five atomics in shared memory; per block
// twelve in global memory.  f64 reads twice, for its class must be known first,
// and its blocks take turns.
#include "kernels/cuda/stream.h"
#include "kernels/cuda/window.h"

namespace aliquot::kernels {
namespace {

constexpr unsigned long long kNoneBad = ~0ull;
// The 192 bits of a window of f64 have room for 2^24 terms.
constexpr int kMostAdds = 1 << 20;

// The sums of a block, in shared memory.
struct BlockSums {
  uint32_t high[kHalfWords], low[kHalfWords];
  uint32_t nonfinite;
  int32_t most;  // the largest exponent of a finite element that is not zero
  unsigned long long first_bad;
};

// One thread's norm.  `c` is the block's highest class.
template <typename S>
struct ThreadNorm {
  BlockSums* block;
  int c;
  Window window;
  uint32_t nonfinite = 0;
  uint64_t first_bad = kNoneBad;
  int adds = 0;

  __device__ void deposit(Wide192 sum, int exponent) {
    const Place place = place_of<S>(exponent);
    if (place.c < c - 1) return;
    uint32_t* into = place.c == c ? block->high : block->low;
    add_shifted(into, place.position, sum);
  }

  __device__ void flush() {
    if (window.width != 0) deposit(window.sum, window.base);
    window = {};
    adds = 0;
  }

  __device__ void deposit_one(const Element& x) {
    const Wide square = Wide{x.m} * x.m;
    deposit({{static_cast<uint64_t>(square),
              static_cast<uint64_t>(square >> 64), 0}},
            x.exponent);
  }

  template <int N>
  __device__ void add(int64_t i, const Pack<S, N>& raw) {
    Element x[N];
    int most = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      x[j] = take_apart(raw.at[j]);
      if (x[j].exponent == infinite_exponent<S>()) {
        ++nonfinite;
        const uint64_t at = static_cast<uint64_t>(i + j);
        if (at < first_bad) first_bad = at;
        x[j] = {0, 1};
      }
      if (x[j].m != 0 && x[j].exponent > most) most = x[j].exponent;
    }
    if (most == 0) return;
    if (!window.takes(most) || adds >= kMostAdds) {
      flush();
      open_at<S>(&window, most);
    }
    if constexpr (sizeof(S) == 8) adds += N;
    add_pack<S>(&window, x);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (x[j].m != 0 && !window.takes(x[j].exponent)) deposit_one(x[j]);
    }
  }

  __device__ void finish(int64_t base) {
    flush();
    if (nonfinite == 0) return;
    atomicAdd(&block->nonfinite, nonfinite);
    atomicMin(&block->first_bad,
              static_cast<unsigned long long>(base) + first_bad);
  }
};

template <typename S>
struct NormBody : ReadsArray<S> {
  ThreadNorm<S>* thread;

  template <int N>
  __device__ void finish(int64_t i, const Pack<S, N>& raw) const {
    thread->add(i, raw);
  }
};

// The largest exponent only.
template <typename S>
struct MostBody : ReadsArray<S> {
  int* most;

  template <int N>
  __device__ void finish(int64_t, const Pack<S, N>& raw) const {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const Element x = take_apart(raw.at[j]);
      const bool counts = x.m != 0 && x.exponent != infinite_exponent<S>();
      if (counts && x.exponent > *most) *most = x.exponent;
    }
  }
};

template <typename S>
__device__ constexpr int norm_elements() {
  return 16 / static_cast<int>(sizeof(S));
}

__device__ void clear(BlockSums* block) {
  for (unsigned i = threadIdx.x; i < kHalfWords; i += blockDim.x) {
    block->high[i] = block->low[i] = 0;
  }
  if (threadIdx.x != 0) return;
  block->nonfinite = 0;
  block->most = 0;
  block->first_bad = kNoneBad;
}

template <typename S>
__device__ void find_most(const NormArgs& a, BlockSums* block) {
  int most = 0;
  const MostBody<S> body = {{static_cast<const S*>(a.src)}, &most};
  stream<norm_elements<S>(), 2>(body, a.count);
  if (most != 0) atomicMax(&block->most, most);
}

template <typename S>
__device__ void sum(const NormArgs& a, BlockSums* block) {
  const int c = place_of<S>(block->most == 0 ? 1 : block->most).c;
  ThreadNorm<S> thread = {block, c, {}};
  const NormBody<S> body = {{static_cast<const S*>(a.src)}, &thread};
  stream<norm_elements<S>(), 2>(body, a.count);
  thread.finish(a.base);
}

template <typename S>
__device__ void norm(const NormArgs& a, BlockSums* block) {
  each_thread([&] { clear(block); });
  if constexpr (sizeof(S) == 8) {
    each_thread([&] { find_most<S>(a, block); });
  }
  each_thread([&] { sum<S>(a, block); });
}

// Classes differ between blocks: one after the other.
__device__ void merge_any_class(const BlockSums& block, NormBins* bins) {
  NormBins mine = {};
  if (block.most != 0) {
    mine.top = place_of<double>(block.most).c + kClassBias;
    join_words(block.high, mine.high);
    join_words(block.low, mine.low);
  }
  mine.nonfinite = block.nonfinite;
  mine.first_bad = static_cast<int64_t>(block.first_bad);
  merge_in_turn(bins, mine);
}

template <typename S>
__device__ void norm_class_0(const NormArgs& a, BlockSums* block) {
  norm<S>(a, block);
  each_thread([&] {
    if (threadIdx.x != 0) return;
    bool any = false;
    for (int i = 0; i < kHalfWords; ++i) any = any || block->high[i] != 0;
    prepare_bins(a.bins, any);
    if (block->nonfinite != 0) {
      add_bad(a.bins, block->nonfinite, block->first_bad);
    }
  });
  each_thread([&] { add_class_0(a.bins, block->high); });
}

}  // namespace

ALQ_KERNEL(alq_norm_f64, NormArgs) {
  __shared__ BlockSums block;
  norm<double>(args, &block);
  each_thread([&] {
    if (threadIdx.x == 0) merge_any_class(block, args.bins);
  });
}
ALQ_KERNEL(alq_norm_f32, NormArgs) {
  __shared__ BlockSums block;
  norm_class_0<float>(args, &block);
}
ALQ_KERNEL(alq_norm_f16, NormArgs) {
  __shared__ BlockSums block;
  norm_class_0<F16>(args, &block);
}
ALQ_KERNEL(alq_norm_bf16, NormArgs) {
  __shared__ BlockSums block;
  norm_class_0<BF16>(args, &block);
}

}  // namespace aliquot::kernels
