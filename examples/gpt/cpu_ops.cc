// The operations on the calling thread.
#include <algorithm>
#include <vector>

#include "loss.h"
#include "ops.h"
#include "rope.h"
#include "swiglu.h"

namespace gpt {
namespace {

template <class T>
class CpuOps final : public Ops<T> {
 public:
  using C = Compute<T>;
  explicit CpuOps(const Shape& s)
      : s_(s),
        gemm_(pool_),
        rope_(s.seq, s.head_dim()),
        attention_({s.micro_batch, s.seq, s.heads, s.kv_heads, s.head_dim()},
                   pool_, gemm_) {}

  int64_t bytes() const override { return pool_.bytes(); }

  void set_tokens(const uint8_t* inputs, const uint8_t* targets) override {
    inputs_.assign(inputs, inputs + s_.rows());
    targets_.assign(targets, targets + s_.rows());
  }

  void copy(int64_t count, const T* from, T* to) override {
    std::copy_n(from, count, to);
  }
  void zero(int64_t count, T* x) override { std::fill_n(x, count, T{}); }
  void put(int64_t count, const C* sum, bool add, T* to) override {
    for (int64_t j = 0; j < count; ++j) {
      to[j] = down<T>(add ? sum[j] + up(to[j]) : sum[j]);
    }
  }

  void multiply(C alpha, In<T> a, In<T> b, C beta, Out<T> c) override {
    gemm_(alpha, a, b, beta, c);
  }
  void multiply_wide(In<T> a, In<T> b, C beta, Out<C> c) override {
    gemm_(C{1}, a, b, beta, c);
  }

  void embed(const T* table, T* x) override {
    for (const uint8_t token : inputs_) {
      x = std::copy_n(table + token * s_.hidden, s_.hidden, x);
    }
  }
  void embed_backward(const T* d, C* sum) override {
    std::fill_n(sum, kVocab * s_.hidden, C{0});
    for (const uint8_t token : inputs_) {
      C* to = sum + token * s_.hidden;
      for (int64_t j = 0; j < s_.hidden; ++j) to[j] += up(d[j]);
      d += s_.hidden;
    }
  }

  void rmsnorm(Rows size, const T* x, const T* w, T* y, C* scale) override {
    gpt::rmsnorm(size, x, w, y, scale);
  }
  void rmsnorm_backward(Rows size, const T* x, const T* w, const C* scale,
                        const C* dy, T* dx, C* dw) override {
    gpt::rmsnorm_backward(size, x, w, scale, dy, dx, dw);
  }
  void turn(int64_t heads, T* x, bool back) override {
    if (back) return rope_.turn_back(s_.rows(), heads, x);
    rope_.turn(s_.rows(), heads, x);
  }
  void swiglu(int64_t count, const T* gate, const T* up_, T* y) override {
    gpt::swiglu(count, gate, up_, y);
  }
  void swiglu_backward(int64_t count, const T* dy, T* gate, T* up_) override {
    gpt::swiglu_backward(count, dy, gate, up_);
  }

  void attention(const T* q, const T* k, const T* v, T* probs, T* o) override {
    attention_.forward(q, k, v, probs, o);
  }
  void attention_backward(const typename Attention<T>::Saved& saved,
                          const typename Attention<T>::Grads& grads) override {
    attention_.backward(saved, grads);
  }

  double loss(const C* logits) override {
    return cross_entropy<T>({s_.rows(), kVocab}, targets_.data(), logits);
  }
  void loss_backward(double factor, const C* logits, T* dlogits) override {
    cross_entropy_backward({s_.rows(), kVocab}, targets_.data(), factor, logits,
                           dlogits);
  }

 private:
  void* take_bytes(int64_t bytes) override {
    return pool_.take<uint8_t>(bytes);
  }

  Shape s_;
  Pool pool_;
  Gemm<T> gemm_;
  Rope<C> rope_;
  Attention<T> attention_;
  std::vector<uint8_t> inputs_, targets_;
};

}  // namespace

template <class T>
std::unique_ptr<Ops<T>> make_cpu_ops(const Shape& shape) {
  return std::make_unique<CpuOps<T>>(shape);
}

template std::unique_ptr<Ops<double>> make_cpu_ops(const Shape&);
template std::unique_ptr<Ops<float>> make_cpu_ops(const Shape&);
template std::unique_ptr<Ops<Bf16>> make_cpu_ops(const Shape&);

}  // namespace gpt
