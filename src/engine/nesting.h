// The nesting of a sum over microbatches: which partial sums are formed, in
// which order.  "4x2" sums 8 contributions as 4 groups of 2, each level
// linearly in index order.  Pure arithmetic; one sum buffer per level, level 0
// outermost.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace aliquot::engine {

class Nesting {
 public:
  // "" is one flat level of any length.  Sizes are at least 1, their product
  // at most 1,000,000.
  static Result<Nesting> parse(std::string_view text);

  int32_t levels() const { return static_cast<int32_t>(sizes_.size()); }
  // Microbatches of a whole nesting; 0: any number (flat).
  int64_t total() const { return total_; }

  // add(level, first): the new contribution goes into the innermost level, over
  // what is there if first.
  bool first_at_innermost(int64_t index) const {
    return first_at(levels() - 1, index);
  }

  // Calls fold(level, first) for each level that is complete after contribution
  // `index` (all of them if last), innermost first: level `level` is to be
  // added to level - 1, over what is there if first.
  template <typename Fold>
  void after(int64_t index, bool last, Fold fold) const {
    for (int32_t level = levels() - 1; level > 0; --level) {
      if (!last && (index + 1) % span(level - 1) != 0) return;
      fold(level, first_at(level - 1, index));
    }
  }

 private:
  // Contributions below one entry of `level`.
  int64_t span(int32_t level) const {
    int64_t span = 1;
    for (size_t l = static_cast<size_t>(level) + 1; l < sizes_.size(); ++l) {
      span *= sizes_[l];
    }
    return span;
  }
  // Is contribution `index` within the first entry of its level?
  bool first_at(int32_t level, int64_t index) const {
    int64_t entry = index / span(level);
    int64_t size = sizes_[static_cast<size_t>(level)];
    return level == 0 ? entry == 0 : entry % size == 0;
  }

  std::vector<int64_t> sizes_ = {0};
  int64_t total_ = 0;
};

}  // namespace aliquot::engine
