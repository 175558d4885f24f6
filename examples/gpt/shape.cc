#include "shape.h"

#include <fmt/format.h>

#include <cmath>

namespace gpt {
namespace {

class Builder {
 public:
  void unit(std::string name, bool root) {
    layout_.units.push_back({std::move(name), root, {}});
  }
  void norm(const char* name, int64_t size) { add(name, {size}, 0, false); }
  void matrix(const char* name, int64_t out, int64_t in, double std) {
    add(name, {out, in}, std, true);
  }
  Layout take() { return std::move(layout_); }

 private:
  void add(const char* name, std::vector<int64_t> shape, double std,
           bool decay) {
    UnitSpec& unit = layout_.units.back();
    unit.params.push_back(static_cast<int64_t>(layout_.params.size()));
    layout_.params.push_back(
        {fmt::format("{}.{}", unit.name, name), std::move(shape), std, decay});
  }
  Layout layout_;
};

}  // namespace

int64_t ParamSpec::count() const {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

int64_t Layout::count() const {
  int64_t n = 0;
  for (const ParamSpec& param : params) n += param.count();
  return n;
}

std::string why_not(const Shape& s) {
  const struct {
    const char* name;
    int64_t value;
  } sizes[] = {{"--layers", s.layers},
               {"--hidden", s.hidden},
               {"--heads", s.heads},
               {"--kv-heads", s.kv_heads},
               {"--ffn", s.ffn},
               {"--seq", s.seq},
               {"--micro-batch", s.micro_batch}};
  for (const auto& size : sizes) {
    if (size.value >= 1 && size.value <= (1 << 24)) continue;
    return fmt::format("{} is {}: it must be between 1 and {}", size.name,
                       size.value, 1 << 24);
  }
  if (s.hidden % s.heads != 0) {
    return fmt::format(
        "--hidden {} is not divisible by --heads {}: every head needs the "
        "same size",
        s.hidden, s.heads);
  }
  if (s.head_dim() % 2 != 0) {
    return fmt::format(
        "a head has {} / {} = {} elements: rotary embedding turns pairs and "
        "needs an even number",
        s.hidden, s.heads, s.head_dim());
  }
  if (s.heads % s.kv_heads != 0) {
    return fmt::format(
        "--heads {} is not divisible by --kv-heads {}: each key and value "
        "head serves the same number of heads",
        s.heads, s.kv_heads);
  }
  return "";
}

Layout layout_of(const Shape& s) {
  Builder b;
  const auto deep = static_cast<double>(2 * s.layers);
  const auto std_of = [](int64_t in) {
    return 1.0 / std::sqrt(static_cast<double>(in));
  };
  b.unit("root", true);
  b.matrix("embed", kVocab, s.hidden, s.tied ? std_of(s.hidden) : 0.5);
  b.norm("norm", s.hidden);
  if (!s.tied) b.matrix("head", kVocab, s.hidden, 0.5 * std_of(s.hidden));
  for (int64_t l = 0; l < s.layers; ++l) {
    b.unit(fmt::format("block{}", l), false);
    b.norm("norm1", s.hidden);
    b.matrix("q", s.hidden, s.hidden, std_of(s.hidden));
    b.matrix("k", s.kv_dim(), s.hidden, std_of(s.hidden));
    b.matrix("v", s.kv_dim(), s.hidden, std_of(s.hidden));
    b.matrix("o", s.hidden, s.hidden, std_of(s.hidden) / std::sqrt(deep));
    b.norm("norm2", s.hidden);
    b.matrix("gate", s.ffn, s.hidden, std_of(s.hidden));
    b.matrix("up", s.ffn, s.hidden, std_of(s.hidden));
    b.matrix("down", s.hidden, s.ffn, std_of(s.ffn) / std::sqrt(deep));
  }
  return b.take();
}

}  // namespace gpt
