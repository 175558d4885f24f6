#include "cuda/cuda_ops.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "rope.h"

namespace gpt {
namespace {

using cuda::Kernel;
using cuda::Type;

template <class T>
constexpr Type type_of() {
  if (std::is_same_v<T, double>) return Type::kF64;
  return std::is_same_v<T, float> ? Type::kF32 : Type::kBf16;
}

// What its C has is never flipped.
template <class T, class S>
cuda::Product product_of(double alpha, const In<T>& a, const In<T>& b,
                         double beta, const Out<S>& c) {
  return {{a.data, a.ld, a.flipped},
          {b.data, b.ld, b.flipped},
          c.data,
          c.rows,
          c.cols,
          a.flipped ? a.rows : a.cols,
          c.ld,
          type_of<T>(),
          type_of<S>(),
          alpha,
          beta};
}

template <class T>
class CudaOps final : public Ops<T> {
 public:
  using C = Compute<T>;
  CudaOps(const Shape& shape, cuda::Place place);

  int64_t bytes() const override { return gpu_.bytes(); }

  void set_tokens(const uint8_t* inputs, const uint8_t* targets) override;

  void copy(int64_t count, const T* from, T* to) override {
    gpu_.copy(from, count * int64_t{sizeof(T)}, to);
  }
  void zero(int64_t count, T* x) override {
    gpu_.zero(count * int64_t{sizeof(T)}, x);
  }
  void put(int64_t count, const C* sum, bool add, T* to) override {
    per_element(Kernel::k_put, cuda::PutArgs{sum, to, count, add ? 1 : 0},
                count);
  }
  void multiply(C alpha, In<T> a, In<T> b, C beta, Out<T> c) override {
    gpu_.multiply(product_of(alpha, a, b, beta, c));
  }
  void multiply_wide(In<T> a, In<T> b, C beta, Out<C> c) override {
    gpu_.multiply(product_of(1, a, b, beta, c));
  }

  void embed(const T* table, T* x) override {
    per_element(Kernel::k_embed,
                cuda::EmbedArgs{inputs_, table, x, s_.rows(), s_.hidden},
                s_.rows() * s_.hidden);
  }
  void embed_backward(const T* d, C* sum) override {
    per_element(
        Kernel::k_embed_backward,
        cuda::EmbedBackwardArgs{inputs_, d, sum, s_.rows(), s_.hidden, kVocab},
        kVocab * s_.hidden);
  }
  void rmsnorm(Rows size, const T* x, const T* w, T* y, C* scale) override {
    per_row(Kernel::k_rmsnorm,
            cuda::RmsnormArgs{x, w, y, scale, size.rows, size.cols}, size.rows);
  }
  void rmsnorm_backward(Rows size, const T* x, const T* w, const C* scale,
                        const C* dy, T* dx, C* dw) override;
  void turn(int64_t heads, T* x, bool back) override {
    const int64_t half = s_.head_dim() / 2;
    per_element(Kernel::k_rope,
                cuda::RopeArgs{x, cosines_, sines_, s_.rows(), heads, half,
                               s_.seq, back ? 1 : 0},
                s_.rows() * heads * half);
  }
  void swiglu(int64_t count, const T* gate, const T* up_, T* y) override {
    per_element(Kernel::k_swiglu, cuda::SwigluArgs{gate, up_, y, count}, count);
  }
  void swiglu_backward(int64_t count, const T* dy, T* gate, T* up_) override {
    per_element(Kernel::k_swiglu_backward,
                cuda::SwigluBackwardArgs{dy, gate, up_, count}, count);
  }
  void attention(const T* q, const T* k, const T* v, T* probs, T* o) override {
    per_row(Kernel::k_attention,
            cuda::AttentionArgs{q, k, v, probs, o, scratch_, sizes()},
            score_rows());
  }
  void attention_backward(const typename Attention<T>::Saved& saved,
                          const typename Attention<T>::Grads& grads) override;
  double loss(const C* logits) override;
  void loss_backward(double factor, const C* logits, T* dlogits) override {
    per_row(Kernel::k_loss_backward,
            cuda::LossBackwardArgs{targets_, logits, dlogits, s_.rows(), kVocab,
                                   factor},
            s_.rows());
  }

 private:
  void* take_bytes(int64_t bytes) override { return gpu_.allocate(bytes); }

  C* upload(const std::vector<C>& values);

  // As many blocks as fill the device, and no more than there is work.
  int64_t most_blocks() const { return 8 * int64_t{gpu_.processors()}; }
  template <class Args>
  void per_row(Kernel kernel, const Args& args, int64_t rows) {
    gpu_.launch(kernel, type_of<T>(), &args, std::min(rows, most_blocks()));
  }
  template <class Args>
  void per_element(Kernel kernel, const Args& args, int64_t count) {
    per_row(kernel, args, (count + cuda::kBlock - 1) / cuda::kBlock);
  }

  cuda::AttentionSizes sizes() const {
    return {s_.micro_batch, s_.seq, s_.heads, s_.kv_heads, s_.head_dim()};
  }
  int64_t score_rows() const { return s_.micro_batch * s_.heads * s_.seq; }

  Shape s_;
  cuda::Gpu gpu_;
  uint8_t* staged_;  // of the host: inputs, then targets
  double* losses_of_host_;
  uint8_t *inputs_, *targets_;
  double* losses_;
  C *cosines_, *sines_, *scratch_;
  T* dscores_;
};

template <class T>
CudaOps<T>::CudaOps(const Shape& shape, cuda::Place place)
    : s_(shape), gpu_(std::move(place)) {
  const int64_t rows = s_.rows();
  staged_ = gpu_.pinned(2 * rows);
  losses_of_host_ =
      reinterpret_cast<double*>(gpu_.pinned(rows * int64_t{sizeof(double)}));
  inputs_ = this->template take<uint8_t>(2 * rows);
  targets_ = inputs_ + rows;
  losses_ = this->template take<double>(rows);
  const Rope<C> rope(s_.seq, s_.head_dim());
  cosines_ = upload(rope.cosines());
  sines_ = upload(rope.sines());
  scratch_ = this->template take<C>(most_blocks() * s_.seq);
  dscores_ = this->template take<T>(score_rows() * s_.seq);
  gpu_.wait();
}

template <class T>
Compute<T>* CudaOps<T>::upload(const std::vector<C>& values) {
  const auto count = static_cast<int64_t>(values.size());
  const int64_t bytes = count * int64_t{sizeof(C)};
  uint8_t* staged = gpu_.pinned(bytes);
  std::memcpy(staged, values.data(), static_cast<size_t>(bytes));
  C* to = this->template take<C>(count);
  gpu_.copy(staged, bytes, to);
  return to;
}

// loss() of the microbatch before has waited: the staged bytes are read.
template <class T>
void CudaOps<T>::set_tokens(const uint8_t* inputs, const uint8_t* targets) {
  std::copy_n(inputs, s_.rows(), staged_);
  std::copy_n(targets, s_.rows(), staged_ + s_.rows());
  gpu_.copy(staged_, 2 * s_.rows(), inputs_);
}

template <class T>
void CudaOps<T>::rmsnorm_backward(Rows size, const T* x, const T* w,
                                  const C* scale, const C* dy, T* dx, C* dw) {
  per_row(Kernel::k_rmsnorm_backward,
          cuda::RmsnormBackwardArgs{x, w, scale, dy, dx, size.rows, size.cols},
          size.rows);
  per_element(Kernel::k_rmsnorm_weight,
              cuda::RmsnormWeightArgs{x, scale, dy, dw, size.rows, size.cols},
              size.cols);
}

template <class T>
void CudaOps<T>::attention_backward(const typename Attention<T>::Saved& saved,
                                    const typename Attention<T>::Grads& grads) {
  per_row(Kernel::k_attention_rows,
          cuda::AttentionRowsArgs{saved.k, saved.v, saved.probs, grads.o,
                                  dscores_, grads.q, scratch_, sizes()},
          score_rows());
  per_element(Kernel::k_attention_columns,
              cuda::AttentionColumnsArgs{saved.q, saved.probs, dscores_,
                                         grads.o, grads.k, grads.v, sizes()},
              s_.rows() * s_.kv_dim());
}

template <class T>
double CudaOps<T>::loss(const C* logits) {
  const int64_t rows = s_.rows();
  per_row(Kernel::k_loss,
          cuda::LossArgs{targets_, logits, losses_, rows, kVocab}, rows);
  gpu_.copy(losses_, rows * int64_t{sizeof(double)}, losses_of_host_);
  gpu_.wait();
  double sum = 0;
  for (int64_t r = 0; r < rows; ++r) sum += losses_of_host_[r];
  return sum;
}

}  // namespace

template <class T>
std::unique_ptr<Ops<T>> make_cuda_ops(const Shape& shape, cuda::Place place) {
  return std::make_unique<CudaOps<T>>(shape, std::move(place));
}

template std::unique_ptr<Ops<double>> make_cuda_ops(const Shape&, cuda::Place);
template std::unique_ptr<Ops<float>> make_cuda_ops(const Shape&, cuda::Place);
template std::unique_ptr<Ops<Bf16>> make_cuda_ops(const Shape&, cuda::Place);

}  // namespace gpt
