#include "comm/bootstrap/missing.h"

#include <fmt/format.h>

namespace aliquot {
namespace {
constexpr size_t kMostParts = 32;
}

std::string rank_ranges(const std::vector<int32_t>& ranks) {
  std::string out;
  size_t parts = 0;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (parts++ == kMostParts) {
      return out + fmt::format(" and {} more", ranks.size() - i);
    }
    if (!out.empty()) out += ", ";
    out += end - i == 1 ? fmt::format("{}", ranks[i])
                        : fmt::format("{}-{}", ranks[i], ranks[end - 1]);
    i = end;
  }
  return out;
}

std::string missing_text(
    const std::vector<std::pair<int32_t, std::string>>& missing) {
  std::string out;
  size_t parts = 0;
  for (size_t i = 0; i < missing.size();) {
    std::vector<int32_t> same;
    size_t end = i;
    while (end < missing.size() && missing[end].second == missing[i].second) {
      same.push_back(missing[end++].first);
    }
    if (parts++ == kMostParts) {
      return out + fmt::format(" and {} more", missing.size() - i);
    }
    if (!out.empty()) out += ", ";
    out += fmt::format("{} {} ({})", same.size() == 1 ? "rank" : "ranks",
                       rank_ranges(same), missing[i].second);
    i = end;
  }
  return out;
}

std::string seconds_text(int64_t ns) {
  return fmt::format("{:.1f} s", static_cast<double>(ns) / 1e9);
}

}  // namespace aliquot
