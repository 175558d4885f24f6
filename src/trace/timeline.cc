// A picture (SVG) of one step: for each rank the lanes compute, gather, reduce
// on a common time axis; exposed communication is drawn over the compute lane,
// coloured by its cause.  Steps are counted from 1 for people.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "aliquot/aliquot.h"
#include "trace/recorder.h"

namespace aliquot::trace {

namespace {

constexpr double kLeft = 160, kWidth = 1180, kLaneHeight = 20, kTop = 64;
constexpr double kRankGap = 18;
constexpr Lane kLanes[] = {Lane::kCompute, Lane::kGather, Lane::kReduce};

const char* colour(const Span& s) {
  if (s.lane == Lane::kGather) return "#2a9d8f";
  if (s.lane == Lane::kReduce) return "#e9803a";
  if (s.lane == Lane::kStep) return "#6d597a";
  switch (s.pass) {
    case ALQ_PASS_B: return "#3a6ea5";
    case ALQ_PASS_R: return "#9db4d3";
    default: return "#7ba3d0";
  }
}

const char* wait_colour(Cause cause) {
  switch (cause) {
    case Cause::kLateLaunch: return "#d62828";
    case Cause::kLink: return "#f4a261";
    case Cause::kSmallMessage: return "#e9c46a";
    case Cause::kBufferRecycle: return "#b5179e";
    default: return "#8d99ae";
  }
}

int32_t last_common_step(const std::vector<RankTrace>& ranks) {
  int32_t step = std::numeric_limits<int32_t>::max();
  for (const RankTrace& r : ranks) {
    int32_t last = -1;
    for (const Span& s : r.spans) {
      if (s.lane == Lane::kStep) last = std::max(last, s.step);
    }
    step = std::min(step, last);
  }
  return step;
}

std::string escaped(const std::string& body) {
  std::string safe;
  for (char c : body) {
    switch (c) {
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '&': safe += "&amp;"; break;
      default: safe += c;
    }
  }
  return safe;
}

std::string text(double x, double y, const char* style,
                 const std::string& body) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y,
                     style, escaped(body));
}

std::string rect(double x, double y, double w, double h, const char* fill,
                 const std::string& title) {
  return fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" "
      "fill=\"{}\"><title>{}</title></rect>\n",
      x, y, std::max(w, 0.4), h, fill, escaped(title));
}

std::string legend() {
  struct Item {
    const char *fill, *label;
  };
  constexpr Item kItems[] = {
      {"#7ba3d0", "forward"},       {"#3a6ea5", "backward"},
      {"#9db4d3", "recompute"},     {"#2a9d8f", "gather"},
      {"#e9803a", "reduce"},        {"#6d597a", "step"},
      {"#d62828", "late launch"},   {"#f4a261", "link bound"},
      {"#e9c46a", "small message"}, {"#b5179e", "buffer recycle"},
      {"#8d99ae", "drain"}};
  std::string out;
  double x = kLeft;
  for (const Item& item : kItems) {
    out += rect(x, 36, 12, 12, item.fill, item.label);
    out += text(x + 16, 46, "class=\"s\"", item.label);
    x += 107;
  }
  return out;
}

}  // namespace

std::string timeline_svg(const std::vector<RankTrace>& ranks, int32_t step) {
  if (step < 0) step = last_common_step(ranks);
  int64_t from = std::numeric_limits<int64_t>::max(), to = 0;
  for (const RankTrace& r : ranks) {
    for (const Span& s : r.spans) {
      if (s.step != step) continue;
      from = std::min(from, s.begin + r.clock_offset_ns);
      to = std::max(to, s.end + r.clock_offset_ns);
    }
  }
  if (to <= from) to = from = 0;
  double span = std::max(1.0, static_cast<double>(to - from));
  double rank_height = 3 * kLaneHeight + kRankGap;
  double height = kTop + rank_height * static_cast<double>(ranks.size()) + 40;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\">\n"
      "<style>text{{font:12px sans-serif;fill:#222}}.s{{font-size:11px}}"
      ".t{{font-size:15px;font-weight:bold}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
      kLeft + kWidth + 40, height);
  out += text(12, 22, "class=\"t\"",
              fmt::format("Step {}: {:.2f} ms on {} ranks", step + 1,
                          span * 1e-6, ranks.size()));
  out += legend();
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankTrace& r = ranks[i];
    double top = kTop + rank_height * static_cast<double>(i);
    out += text(12, top + 26, "", fmt::format("rank {}", r.rank));
    for (size_t lane = 0; lane < 3; ++lane) {
      double y = top + kLaneHeight * static_cast<double>(lane);
      out += text(106, y + 14, "class=\"s\"", lane_name(kLanes[lane]));
      out += rect(kLeft, y + 1, kWidth, kLaneHeight - 2, "#f3f4f6", "");
    }
    std::string waits;
    double exposed = 0;
    for (const Span& s : r.spans) {
      if (s.step != step) continue;
      double x =
          kLeft + kWidth *
                      static_cast<double>(s.begin + r.clock_offset_ns - from) /
                      span;
      double w = kWidth * static_cast<double>(s.end - s.begin) / span;
      std::string what =
          s.name >= 0 && static_cast<size_t>(s.name) < r.names.size()
              ? r.names[static_cast<size_t>(s.name)]
              : lane_name(s.lane);
      std::string title =
          fmt::format("{} {}: {:.1f} us, {} B {}", lane_name(s.lane), what,
                      static_cast<double>(s.end - s.begin) * 1e-3, s.bytes,
                      cause_name(s.cause));
      if (s.lane == Lane::kWait) {
        exposed += static_cast<double>(s.end - s.begin);
        // On the caller's own lane: it is its thread that waits.
        waits +=
            rect(x, top + 5, w, kLaneHeight - 6, wait_colour(s.cause), title);
        continue;
      }
      double lane = s.lane == Lane::kGather   ? 1
                    : s.lane == Lane::kReduce ? 2
                                              : 0;
      // A root unit stays open over the others: a thin line above them.
      double inset = s.root != 0 ? kLaneHeight - 3 : 4;
      out += rect(x, top + lane * kLaneHeight + (s.root != 0 ? 0 : 3), w,
                  kLaneHeight - inset, colour(s), title);
    }
    out += waits;
    out += text(12, top + 44, "class=\"s\"",
                fmt::format("{:.0f}% exposed", 100.0 * exposed / span));
  }
  double axis = kTop + rank_height * static_cast<double>(ranks.size());
  for (int tick = 0; tick <= 10; ++tick) {
    double x = kLeft + kWidth * tick / 10;
    out += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" "
        "stroke=\"#bbb\" stroke-width=\"0.5\"/>\n",
        x, kTop, axis);
    out += text(x - 14, axis + 16, "class=\"s\"",
                fmt::format("{:.1f} ms", span * 1e-6 * tick / 10));
  }
  return out + "</svg>\n";
}

}  // namespace aliquot::trace
