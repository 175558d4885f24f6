// What a device can do for the model: its working memory and every operation of
// the forward and backward pass, in the order in which they are called.  On the
// CPU they are done on return; on a GPU they are enqueued on one stream, and
// only loss() waits.  model.cc and block.cc are written against this alone.
#pragma once

#include <cstdint>
#include <memory>

#include "attention.h"
#include "gemm.h"
#include "rmsnorm.h"
#include "shape.h"

namespace gpt {

template <class T>
class Ops {
 public:
  using C = Compute<T>;
  virtual ~Ops() = default;

  // Zeroed, aligned to 64 bytes, for as long as this lives.
  template <class E>
  E* take(int64_t count) {
    return static_cast<E*>(take_bytes(count * int64_t{sizeof(E)}));
  }
  virtual int64_t bytes() const = 0;

  // The microbatch to come: `rows` bytes to read and those to predict.
  virtual void set_tokens(const uint8_t* inputs, const uint8_t* targets) = 0;

  virtual void copy(int64_t count, const T* from, T* to) = 0;
  virtual void zero(int64_t count, T* x) = 0;
  // to = sum, or to += sum
  virtual void put(int64_t count, const C* sum, bool add, T* to) = 0;

  // c = alpha a b + beta c, rounded once; the second does not round.
  virtual void multiply(C alpha, In<T> a, In<T> b, C beta, Out<T> c) = 0;
  virtual void multiply_wide(In<T> a, In<T> b, C beta, Out<C> c) = 0;

  virtual void embed(const T* table, T* x) = 0;
  virtual void embed_backward(const T* d, C* sum) = 0;
  virtual void rmsnorm(Rows size, const T* x, const T* w, T* y, C* scale) = 0;
  virtual void rmsnorm_backward(Rows size, const T* x, const T* w,
                                const C* scale, const C* dy, T* dx, C* dw) = 0;
  virtual void turn(int64_t heads, T* x, bool back) = 0;
  virtual void swiglu(int64_t count, const T* gate, const T* up_, T* y) = 0;
  virtual void swiglu_backward(int64_t count, const T* dy, T* gate, T* up_) = 0;

  virtual void attention(const T* q, const T* k, const T* v, T* probs,
                         T* o) = 0;
  virtual void attention_backward(
      const typename Attention<T>::Saved& saved,
      const typename Attention<T>::Grads& grads) = 0;

  // The sum of the rows' losses against the targets.  Waits.
  virtual double loss(const C* logits) = 0;
  virtual void loss_backward(double factor, const C* logits, T* dlogits) = 0;

 private:
  virtual void* take_bytes(int64_t bytes) = 0;
};

template <class T>
std::unique_ptr<Ops<T>> make_cpu_ops(const Shape& shape);

}  // namespace gpt
