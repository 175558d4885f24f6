// A Host whose parameters and gradients are plain arrays, filled from a counter
// generator.  It checks the order of calls: units are open when used, and every
// gradient becomes final once.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <random>
#include <vector>

#include "host.h"
#include "shape.h"

namespace gpt {

template <class T>
class MemoryHost final : public Host {
 public:
  explicit MemoryHost(const Layout& layout) : layout_(layout) {
    std::mt19937_64 random(7);
    for (const ParamSpec& spec : layout.params) {
      std::normal_distribution<double> normal(spec.init_std > 0 ? 0 : 1, 0.2);
      std::vector<T> values(static_cast<size_t>(spec.count()));
      for (T& v : values) v = down<T>(static_cast<Compute<T>>(normal(random)));
      params.push_back(std::move(values));
    }
    betas.assign(params.size(), 0);
    for (const auto& p : params) grads.emplace_back(p.size(), T{});
    ready_count.assign(params.size(), 0);
    open_.assign(layout.units.size(), 0);
  }

  UnitView begin(int64_t unit, Pass pass) override {
    const auto u = static_cast<size_t>(unit);
    ++open_[u];
    if (pass == Pass::kRecompute) ++recomputes;
    views_.emplace_back();
    View& view = views_.back();
    for (const int64_t p : layout_.units[u].params) {
      const auto i = static_cast<size_t>(p);
      view.params.push_back(params[i].data());
      view.grads.push_back(pass == Pass::kBackward ? grads[i].data() : nullptr);
      view.betas.push_back(betas[i]);
    }
    return {view.params.data(), view.grads.data(), view.betas.data()};
  }

  void end(int64_t unit, Pass) override {
    BOOST_TEST(open_[static_cast<size_t>(unit)]-- > 0);
  }

  void ready(int64_t unit, int64_t index) override {
    const auto u = static_cast<size_t>(unit);
    BOOST_TEST(open_[u] > 0);
    ++ready_count[static_cast<size_t>(
        layout_.units[u].params[static_cast<size_t>(index)])];
  }

  bool all_closed() const {
    for (const int n : open_) {
      if (n != 0) return false;
    }
    return true;
  }

  std::vector<std::vector<T>> params, grads;
  std::vector<int32_t> betas;
  std::vector<int> ready_count;
  int recomputes = 0;

 private:
  struct View {
    std::vector<void*> params, grads;
    std::vector<int32_t> betas;
  };
  Layout layout_;
  std::vector<int> open_;
  std::vector<View> views_;
};

}  // namespace gpt
