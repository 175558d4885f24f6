#include "model.h"

#include <algorithm>
#include <vector>

#include "block.h"

namespace gpt {
namespace {

constexpr int64_t kRoot = 0;
constexpr int64_t kFirstBlock = 1;

template <class T>
class Transformer final : public Model {
 public:
  using C = Compute<T>;
  Transformer(const Shape& shape, std::unique_ptr<Ops<T>> ops);

  double forward(Host& host, const uint8_t* tokens) override {
    return run(host, tokens, Pass::kForward);
  }
  double evaluate(Host& host, const uint8_t* tokens) override {
    return run(host, tokens, Pass::kForwardNoGrad);
  }
  void backward(Host& host, double factor) override;
  int64_t activation_bytes() const override { return ops_->bytes(); }

 private:
  double run(Host& host, const uint8_t* tokens, Pass pass);
  void split(const uint8_t* tokens);
  double head(UnitView root);
  void head_backward(const Grads<T>& root, double factor);
  void block_backward(Host& host, int64_t layer);
  void embed_backward(const Grads<T>& root);
  int64_t head_param() const { return s_.tied ? kEmbed : kHead; }
  const BlockState<T>& state(int64_t layer) const {
    return states_[s_.checkpoint ? 0 : static_cast<size_t>(layer)];
  }

  Shape s_;
  std::unique_ptr<Ops<T>> ops_;
  Block<T> block_;
  std::vector<uint8_t> inputs_, targets_;
  std::vector<T*> x_;  // input of every block, then the last one's output
  std::vector<BlockState<T>> states_;
  T *normed_, *dlogits_, *d_;
  C *logits_, *scale_, *dnorm_, *dweight_, *dembed_;
};

template <class T>
Transformer<T>::Transformer(const Shape& shape, std::unique_ptr<Ops<T>> ops)
    : s_(shape),
      ops_(std::move(ops)),
      block_(shape, *ops_),
      inputs_(static_cast<size_t>(shape.rows())),
      targets_(static_cast<size_t>(shape.rows())) {
  const int64_t rows = s_.rows(), wide = rows * s_.hidden;
  for (int64_t l = 0; l <= s_.layers; ++l)
    x_.push_back(ops_->template take<T>(wide));
  for (int64_t l = 0; l < (s_.checkpoint ? 1 : s_.layers); ++l) {
    states_.push_back(block_.make_state());
  }
  normed_ = ops_->template take<T>(wide);
  d_ = ops_->template take<T>(wide);
  dlogits_ = ops_->template take<T>(rows * kVocab);
  logits_ = ops_->template take<C>(rows * kVocab);
  scale_ = ops_->template take<C>(rows);
  dnorm_ = ops_->template take<C>(wide);
  dweight_ = ops_->template take<C>(s_.hidden);
  dembed_ = ops_->template take<C>(kVocab * s_.hidden);
}

template <class T>
void Transformer<T>::split(const uint8_t* tokens) {
  for (int64_t i = 0; i < s_.micro_batch; ++i) {
    const uint8_t* sample = tokens + i * (s_.seq + 1);
    std::copy_n(sample, s_.seq, inputs_.data() + i * s_.seq);
    std::copy_n(sample + 1, s_.seq, targets_.data() + i * s_.seq);
  }
  ops_->set_tokens(inputs_.data(), targets_.data());
}

template <class T>
double Transformer<T>::head(UnitView root) {
  const Rows wide{s_.rows(), s_.hidden};
  const auto w = [&](int64_t i) {
    return static_cast<const T*>(root.params[i]);
  };
  ops_->rmsnorm(wide, x_.back(), w(kFinalNorm), normed_, scale_);
  ops_->multiply_wide(in<T>(normed_, wide.rows, wide.cols),
                      transposed(in(w(head_param()), kVocab, wide.cols)), C{0},
                      out(logits_, wide.rows, kVocab));
  return ops_->loss(logits_);
}

template <class T>
double Transformer<T>::run(Host& host, const uint8_t* tokens, Pass pass) {
  split(tokens);
  const UnitView root = host.begin(kRoot, pass);
  ops_->embed(static_cast<const T*>(root.params[kEmbed]), x_[0]);
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
  ops_->loss_backward(factor, logits_, dlogits_);
  const In<T> dlogits = in<T>(dlogits_, rows, kVocab);
  if (root.wanted(w)) {
    ops_->multiply(C{1}, transposed(dlogits), in<T>(normed_, rows, hidden),
                   root.beta(w), out(root.grad(w), kVocab, hidden));
    if (!s_.tied) root.ready(w);  // else the embedding's part comes on top
  }
  ops_->multiply_wide(dlogits, in(root.param(w), kVocab, hidden), C{0},
                      out(dnorm_, rows, hidden));
  ops_->zero(rows * hidden, d_);
  ops_->rmsnorm_backward({rows, hidden}, x_.back(), root.param(kFinalNorm),
                         scale_, dnorm_, d_, dweight_);
  if (!root.wanted(kFinalNorm)) return;
  ops_->put(hidden, dweight_, root.beta(kFinalNorm) != C{0},
            root.grad(kFinalNorm));
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
  ops_->embed_backward(d_, dembed_);
  ops_->put(kVocab * s_.hidden, dembed_, s_.tied || root.beta(kEmbed) != C{0},
            root.grad(kEmbed));
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
std::unique_ptr<Model> make_model(const Shape& shape,
                                  std::unique_ptr<Ops<T>> ops) {
  return std::make_unique<Transformer<T>>(shape, std::move(ops));
}

template std::unique_ptr<Model> make_model(const Shape&,
                                           std::unique_ptr<Ops<double>>);
template std::unique_ptr<Model> make_model(const Shape&,
                                           std::unique_ptr<Ops<float>>);
template std::unique_ptr<Model> make_model(const Shape&,
                                           std::unique_ptr<Ops<Bf16>>);

}  // namespace gpt
