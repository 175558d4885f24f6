// Text about ranks that did not come: ranges, not lists.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace aliquot {

// "0-3, 7": ascending ranks; at most 32 ranges, then "and N more".
std::string rank_ranges(const std::vector<int32_t>& ranks);

// Each missing rank with its state; neighbours in the list with equal states
// share one pair of brackets: "5-6 (never connected), 7 (connected, last seen
// 0.3 s ago)".
std::string missing_text(
    const std::vector<std::pair<int32_t, std::string>>& missing);

// "2.0 s", from nanoseconds.
std::string seconds_text(int64_t ns);

}  // namespace aliquot
