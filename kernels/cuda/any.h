// Arrays of float elements as the optimizers see them: read into and written
// from T (f32 or f64), N at a time.
//   View<S>   of a dtype that is known when the kernel is compiled
//   AnyView   of one that is known when it runs
//   NoView    none: writes nothing
// load only fetches, so that the loads of many arrays are under way together;
// get converts.
#pragma once

#include <type_traits>

#include "kernels/cuda/memory.h"

namespace aliquot::kernels {

template <typename Element>
struct View {
  using S = std::remove_const_t<Element>;

  template <int N>
  using Raw = Pack<S, N>;

  Element* p;

  template <int N>
  __device__ void align(Lead<N>* lead) const {
    lead->add(p);
  }

  template <int N>
  __device__ Raw<N> load(int64_t i) const {
    return load_pack<N>(static_cast<const S*>(p) + i);
  }

  template <int N, typename T>
  __device__ static void get(const Raw<N>& raw, T (&x)[N]) {
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = convert<T>(raw.at[j]);
  }

  template <int N, typename T>
  __device__ void put(int64_t i, const T (&x)[N]) const {
    Pack<S, N> raw;
#pragma unroll
    for (int j = 0; j < N; ++j) raw.at[j] = convert<S>(x[j]);
    store_pack<N>(p + i, raw);
  }
};

struct NoView {
  template <int N>
  __device__ void align(Lead<N>*) const {}

  template <int N, typename T>
  __device__ void put(int64_t, const T (&)[N]) const {}
};

// p may be null: nothing is read or written then.
struct AnyView {
  template <int N>
  using Raw = Pack<uint64_t, N>;  // elements at the front

  void* p;
  Dtype dtype;

  // f(View<S>) for the element type S.
  template <class F>
  __device__ void with(const F& f) const {
    switch (dtype) {
      case ALQ_F64: return f(View<double>{static_cast<double*>(p)});
      case ALQ_F32: return f(View<float>{static_cast<float*>(p)});
      case ALQ_F16: return f(View<F16>{static_cast<F16*>(p)});
      default: return f(View<BF16>{static_cast<BF16*>(p)});
    }
  }

  template <int N>
  __device__ void align(Lead<N>* lead) const {
    if (p == nullptr) return;
    with([lead](auto view) { view.align(lead); });
  }

  template <int N>
  __device__ Raw<N> load(int64_t i) const {
    Raw<N> raw = {};
    if (p == nullptr) return raw;
    with([&raw, i](auto view) {
      const auto pack = view.template load<N>(i);
      std::memcpy(&raw, &pack, sizeof(pack));
    });
    return raw;
  }

  template <int N, typename T>
  __device__ void get(const Raw<N>& raw, T (&x)[N]) const {
    with([&raw, &x](auto view) {
      typename decltype(view)::template Raw<N> pack;
      std::memcpy(&pack, &raw, sizeof(pack));
      view.get(pack, x);
    });
  }

  template <int N, typename T>
  __device__ void put(int64_t i, const T (&x)[N]) const {
    if (p == nullptr) return;
    with([i, &x](auto view) { view.put(i, x); });
  }
};

// Elements of an access of AnyViews: two, of 8 bytes at most.
inline constexpr int kAnyElements = 2;

}  // namespace aliquot::kernels
