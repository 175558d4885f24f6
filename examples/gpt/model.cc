#include "model.h"

#include <algorithm>
#include <vector>

#include "block.h"
#include "loss.h"
#include "rmsnorm.h"

namespace gpt {
namespace {

constexpr int64_t kRoot = 0;
constexpr int64_t kFirstBlock = 1;

template <class T>
class Transformer final : public Model {
 public:
  using C = Compute<T>;
  explicit Transformer(const Shape& shape);

  double forward(Host& host, const uint8_t* tokens) override {
    return run(host, tokens, Pass::kForward);
  }
  double evaluate(Host& host, const uint8_t* tokens) override {
    return run(host, tokens, Pass::kForwardNoGrad);
  }
  void backward(Host& host, double factor) override;
  int64_t activation_bytes() const override { return pool_.bytes(); }

 private:
  double run(Host& host, const uint8_t* tokens, Pass pass);
  void split(const uint8_t* tokens);
  void embed(const T* table);
  double head(UnitView root);
  void head_backward(const Grads<T>& root, double factor);
  void block_backward(Host& host, int64_t layer);
  void embed_backward(const Grads<T>& root);
  int64_t head_param() const { return s_.tied ? kEmbed : kHead; }
  const BlockState<T>& state(int64_t layer) const {
    return states_[s_.checkpoint ? 0 : static_cast<size_t>(layer)];
  }

  Shape s_;
  Pool pool_;
  Gemm<T> gemm_;
  Block<T> block_;
  std::vector<uint8_t> inputs_, targets_;
  std::vector<T*> x_;  // input of every block, then the last one's output
  std::vector<BlockState<T>> states_;
  T *normed_, *dlogits_, *d_;
  C *logits_, *scale_, *dnorm_, *dweight_, *dembed_;
};

template <class T>
Transformer<T>::Transformer(const Shape& shape)
    : s_(shape),
      gemm_(pool_),
      block_(shape, pool_, gemm_),
      inputs_(static_cast<size_t>(shape.rows())),
      targets_(static_cast<size_t>(shape.rows())) {
  const int64_t rows = s_.rows(), wide = rows * s_.hidden;
  for (int64_t l = 0; l <= s_.layers; ++l) x_.push_back(pool_.take<T>(wide));
  for (int64_t l = 0; l < (s_.checkpoint ? 1 : s_.layers); ++l) {
    states_.push_back(block_.make_state(pool_));
  }
  normed_ = pool_.take<T>(wide);
  d_ = pool_.take<T>(wide);
  dlogits_ = pool_.take<T>(rows * kVocab);
  logits_ = pool_.take<C>(rows * kVocab);
  scale_ = pool_.take<C>(rows);
  dnorm_ = pool_.take<C>(wide);
  dweight_ = pool_.take<C>(s_.hidden);
  dembed_ = pool_.take<C>(kVocab * s_.hidden);
}

template <class T>
void Transformer<T>::split(const uint8_t* tokens) {
  for (int64_t i = 0; i < s_.micro_batch; ++i) {
    const uint8_t* sample = tokens + i * (s_.seq + 1);
    std::copy_n(sample, s_.seq, inputs_.data() + i * s_.seq);
    std::copy_n(sample + 1, s_.seq, targets_.data() + i * s_.seq);
  }
}

template <class T>
void Transformer<T>::embed(const T* table) {
  for (int64_t r = 0; r < s_.rows(); ++r) {
    const int64_t token = inputs_[static_cast<size_t>(r)];
    std::copy_n(table + token * s_.hidden, s_.hidden, x_[0] + r * s_.hidden);
  }
}

template <class T>
double Transformer<T>::head(UnitView root) {
  const Rows wide{s_.rows(), s_.hidden};
  const auto w = [&](int64_t i) {
    return static_cast<const T*>(root.params[i]);
  };
  rmsnorm(wide, x_.back(), w(kFinalNorm), normed_, scale_);
  gemm_(C{1}, in<T>(normed_, wide.rows, wide.cols),
        transposed(in(w(head_param()), kVocab, wide.cols)), C{0},
        out(logits_, wide.rows, kVocab));
  return cross_entropy<T>({wide.rows, kVocab}, targets_.data(), logits_);
}

template <class T>
double Transformer<T>::run(Host& host, const uint8_t* tokens, Pass pass) {
  split(tokens);
  const UnitView root = host.begin(kRoot, pass);
  embed(static_cast<const T*>(root.params[kEmbed]));
  for (int64_t l = 0; l < s_.layers; ++l) {
    const auto i = static_cast<size_t>(l);
    const UnitView unit = host.begin(kFirstBlock + l, pass);
    block_.forward(unit, x_[i], state(l), x_[i + 1]);
    host.end(kFirstBlock + l, pass);
  }
  const double loss = head(root);
  host.end(kRoot, pass);
  return loss;
}

template <class T>
void Transformer<T>::head_backward(const Grads<T>& root, double factor) {
  const int64_t rows = s_.rows(), hidden = s_.hidden, w = head_param();
  cross_entropy_backward({rows, kVocab}, targets_.data(), factor, logits_,
                         dlogits_);
  const In<T> dlogits = in<T>(dlogits_, rows, kVocab);
  if (root.wanted(w)) {
    gemm_(C{1}, transposed(dlogits), in<T>(normed_, rows, hidden), root.beta(w),
          out(root.grad(w), kVocab, hidden));
    if (!s_.tied) root.ready(w);  // else the embedding's part comes on top
  }
  gemm_(C{1}, dlogits, in(root.param(w), kVocab, hidden), C{0},
        out(dnorm_, rows, hidden));
  std::fill_n(d_, rows * hidden, T{});
  rmsnorm_backward({rows, hidden}, x_.back(), root.param(kFinalNorm), scale_,
                   dnorm_, d_, dweight_);
  if (!root.wanted(kFinalNorm)) return;
  root.put(kFinalNorm, hidden, dweight_, root.beta(kFinalNorm) != C{0});
  root.ready(kFinalNorm);
}

template <class T>
void Transformer<T>::block_backward(Host& host, int64_t layer) {
  const int64_t unit = kFirstBlock + layer;
  const auto i = static_cast<size_t>(layer);
  const Grads<T> grads(host, unit, host.begin(unit, Pass::kBackward));
  if (s_.checkpoint) {
    const UnitView again = host.begin(unit, Pass::kRecompute);
    block_.forward(again, x_[i], state(layer), x_[i + 1]);
    host.end(unit, Pass::kRecompute);
  }
  block_.backward(grads, x_[i], state(layer), d_);
  host.end(unit, Pass::kBackward);
}

template <class T>
void Transformer<T>::embed_backward(const Grads<T>& root) {
  if (!root.wanted(kEmbed)) return;
  std::fill_n(dembed_, kVocab * s_.hidden, C{0});
  for (int64_t r = 0; r < s_.rows(); ++r) {
    C* to = dembed_ + inputs_[static_cast<size_t>(r)] * s_.hidden;
    const T* from = d_ + r * s_.hidden;
    for (int64_t j = 0; j < s_.hidden; ++j) to[j] += up(from[j]);
  }
  root.put(kEmbed, kVocab * s_.hidden, dembed_,
           s_.tied || root.beta(kEmbed) != C{0});
  root.ready(kEmbed);
}

template <class T>
void Transformer<T>::backward(Host& host, double factor) {
  const Grads<T> root(host, kRoot, host.begin(kRoot, Pass::kBackward));
  head_backward(root, factor);
  for (int64_t l = s_.layers - 1; l >= 0; --l) block_backward(host, l);
  embed_backward(root);
  host.end(kRoot, Pass::kBackward);
}

}  // namespace

template <class T>
std::unique_ptr<Model> make_model(const Shape& shape) {
  return std::make_unique<Transformer<T>>(shape);
}

template std::unique_ptr<Model> make_model<double>(const Shape&);
template std::unique_ptr<Model> make_model<float>(const Shape&);
template std::unique_ptr<Model> make_model<Bf16>(const Shape&);

}  // namespace gpt
