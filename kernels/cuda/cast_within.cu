// A cast to a narrower dtype in place.  An element is written over others that
// come later in no order that a grid keeps, so one block goes through the array
// in chunks: all of a chunk is read before any of it is written, and what is
// written lies before what is still to be read.
// Cost: the speed of one multiprocessor.  Nothing of a step needs it.
#include "kernels/arithmetic/combine.h"
#include "kernels/cuda/any.h"

namespace aliquot::kernels {
namespace {

template <typename T>
__device__ void cast_within(const CastArgs& a, T* chunk) {
  const AnyView to = {a.dst, a.dst_dtype},
                from = {const_cast<void*>(a.src), a.src_dtype};
  const T scale = static_cast<T>(a.scale);
  const bool scaled = a.scale != 1.0;
  for (int64_t at = 0; at < a.count; at += blockDim.x) {
    each_thread([&] {
      if (at + threadIdx.x >= a.count) return;
      T x[1];
      from.get(from.load<1>(at + threadIdx.x), x);
      chunk[threadIdx.x] = scaled ? canonical(x[0] * scale) : x[0];
    });
    each_thread([&] {
      if (at + threadIdx.x >= a.count) return;
      const T x[1] = {chunk[threadIdx.x]};
      to.put<1>(at + threadIdx.x, x);
    });
  }
}

}  // namespace

ALQ_KERNEL(alq_cast_within, CastArgs) {
  __shared__ double chunk[kCudaBlock];
  if (blockIdx.x != 0) return;
  if (args.src_dtype == ALQ_F64) {
    cast_within<double>(args, chunk);
  } else {
    cast_within<float>(args, reinterpret_cast<float*>(chunk));
  }
}

}  // namespace aliquot::kernels
