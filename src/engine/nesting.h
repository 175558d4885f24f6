// The nesting of a sum over microbatches: which partial sums are formed, in
// which order.  "4x2" sums 8 contributions as 4 groups of 2, "3+2+2" sums 7 as
// groups of 3, 2 and 2, "(2+1)+1" forms groups of groups; each level is summed
// linearly in index order.  Pure arithmetic; one sum buffer per level, level 0
// outermost.  Cost of a question: a binary search per level.
//
//   nesting = term {"+" term}        several terms: one level more than theirs
//   term    = size | size "x" term | "(" nesting ")"
//
// Terms of fewer levels than their neighbours are groups of one group, which
// changes no sum.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace aliquot::engine {

class Nesting {
 public:
  // "" is one flat level of any length.  Sizes are at least 1, the sum of all
  // at most 1,000,000, in at most 32 levels.
  static Result<Nesting> parse(std::string_view text);

  int32_t levels() const { return static_cast<int32_t>(starts_.size()); }
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
      if (!last && !ends(level, index)) return;
      fold(level, first_at(level - 1, index));
    }
  }

 private:
  using Starts = std::vector<int64_t>;

  const Starts& starts(int32_t level) const {
    return starts_[static_cast<size_t>(level)];
  }
  // First contribution of the group of `level` that holds contribution `index`.
  int64_t start(int32_t level, int64_t index) const {
    const Starts& all = starts(level);
    return *(std::upper_bound(all.begin(), all.end(), index) - 1);
  }
  bool ends(int32_t level, int64_t index) const {
    return index + 1 == total_ ||
           std::binary_search(starts(level).begin(), starts(level).end(),
                              index + 1);
  }
  // Is what comes with `index` (a group of the next level, or innermost the
  // contribution itself) the first of its group of `level`?
  bool first_at(int32_t level, int64_t index) const {
    int64_t part = level + 1 < levels() ? start(level + 1, index) : index;
    return start(level, index) == part;
  }

  // First contributions of each level's groups, ascending.
  std::vector<Starts> starts_ = {{0}};
  int64_t total_ = 0;
};

}  // namespace aliquot::engine
