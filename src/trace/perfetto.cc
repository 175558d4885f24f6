// Chrome/Perfetto trace JSON of all ranks.
// Source: the Trace Event Format document (complete events "X", metadata "M").
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "aliquot/aliquot.h"
#include "base/json.h"
#include "trace/recorder.h"

namespace aliquot::trace {

namespace {

const char* pass_text(int32_t pass) {
  switch (pass) {
    case ALQ_PASS_F: return " F";
    case ALQ_PASS_F_NOGRAD: return " F (no grad)";
    case ALQ_PASS_R: return " R";
    case ALQ_PASS_B: return " B";
    default: return "";
  }
}

// JSON string contents; unit names are the caller's, of any bytes.
std::string escaped(const std::string& text) {
  std::string quoted = Json(text).dump();
  return quoted.substr(1, quoted.size() - 2);
}

}  // namespace

std::string perfetto_json(const std::vector<RankTrace>& ranks) {
  int64_t start = std::numeric_limits<int64_t>::max();
  for (const RankTrace& r : ranks) {
    for (const Span& s : r.spans) {
      start = std::min(start, s.begin + r.clock_offset_ns);
    }
  }
  auto micros = [](int64_t ns) { return static_cast<double>(ns) * 1e-3; };
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  const char* comma = "";
  for (const RankTrace& r : ranks) {
    out += fmt::format(
        "{}{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{},\"args\":{{"
        "\"name\":\"rank {}\"}}}}",
        comma, r.rank, r.rank);
    comma = ",\n";
    for (int32_t lane = 0; lane < static_cast<int32_t>(Lane::kCount); ++lane) {
      out += fmt::format(
          ",\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{},\"tid\":{},"
          "\"args\":{{\"name\":\"{}\"}}}}",
          r.rank, lane, lane_name(static_cast<Lane>(lane)));
    }
    for (const Span& s : r.spans) {
      std::string name =
          s.name >= 0 && static_cast<size_t>(s.name) < r.names.size()
              ? r.names[static_cast<size_t>(s.name)]
              : lane_name(s.lane);
      out += fmt::format(
          ",\n{{\"ph\":\"X\",\"name\":\"{}{}\",\"cat\":\"{}\",\"pid\":{},"
          "\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f},\"args\":{{\"bytes\":{},"
          "\"step\":{},\"cause\":\"{}\"}}}}",
          escaped(name), pass_text(s.pass), lane_name(s.lane), r.rank,
          static_cast<int32_t>(s.lane),
          micros(s.begin + r.clock_offset_ns - start), micros(s.end - s.begin),
          s.bytes, s.step, cause_name(s.cause));
    }
  }
  return out + "\n]}\n";
}

}  // namespace aliquot::trace
