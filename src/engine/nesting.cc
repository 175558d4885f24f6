#include "engine/nesting.h"

#include <charconv>
#include <utility>

namespace aliquot::engine {
namespace {

constexpr int64_t kMostContributions = 1'000'000;
constexpr size_t kMostLevels = 32;

// First contributions of the groups of each level, and how many contributions
// there are; 0: the text is wrong.
struct Tree {
  std::vector<std::vector<int64_t>> starts;
  int64_t total = 0;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  Tree whole() {
    Tree tree = sum(0);
    return rest_.empty() ? tree : Tree{};
  }

 private:
  bool take(char c) {
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  int64_t size() {
    int64_t size = 0;
    auto [end, ec] =
        std::from_chars(rest_.data(), rest_.data() + rest_.size(), size);
    if (ec != std::errc() || size < 1 || size > kMostContributions) return 0;
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    return size;
  }

  Tree sum(size_t depth) {
    std::vector<Tree> terms;
    do {
      terms.push_back(term(depth));
      if (terms.back().total == 0) return {};
    } while (take('+'));
    return terms.size() == 1 ? std::move(terms[0]) : join(terms, 1);
  }

  Tree term(size_t depth) {
    if (depth > kMostLevels) return {};
    if (take('(')) {
      Tree inner = sum(depth + 1);
      return take(')') ? inner : Tree{};
    }
    int64_t count = size();
    if (count == 0) return {};
    if (!take('x')) return {{{0}}, count};
    std::vector<Tree> one(1, term(depth + 1));
    return join(one, count);
  }

  // The terms, `times` over, as groups of a level around them.
  static Tree join(const std::vector<Tree>& terms, int64_t times) {
    size_t levels = 0;
    int64_t total = 0;
    for (const Tree& term : terms) {
      if (term.total == 0) return {};
      levels = std::max(levels, term.starts.size());
      total += term.total;
    }
    if (levels >= kMostLevels || total > kMostContributions / times) return {};
    Tree out;
    out.starts.resize(levels + 1);
    out.starts[0] = {0};
    for (int64_t i = 0; i < times; ++i) {
      for (const Tree& term : terms) append(term, &out);
    }
    return out;
  }

  static void append(const Tree& term, Tree* out) {
    size_t levels = out->starts.size();
    size_t missing = levels - 1 - term.starts.size();
    for (size_t l = 1; l < levels; ++l) {
      const std::vector<int64_t>& starts =
          term.starts[l <= missing ? 0 : l - 1 - missing];
      for (int64_t start : starts) {
        out->starts[l].push_back(out->total + start);
      }
    }
    out->total += term.total;
  }

  std::string_view rest_;
};

}  // namespace

Result<Nesting> Nesting::parse(std::string_view text) {
  Nesting nesting;
  if (text.empty()) return nesting;
  Tree tree = Parser(text).whole();
  if (tree.total == 0) {
    return make_error(ALQ_INVALID_ARGUMENT,
                      "nesting \"{}\": write sizes from 1, outermost first, as "
                      "in \"4x2\" (4 groups of 2), \"3+2+2\" or "
                      "\"(2+1)+(1+1)\"; {} microbatches and {} levels at most",
                      text, kMostContributions, kMostLevels);
  }
  nesting.starts_ = std::move(tree.starts);
  nesting.total_ = tree.total;
  return nesting;
}

}  // namespace aliquot::engine
