// Traces of other ranks: the bytes that a rank sends for a merged trace, and
// the two pictures made of them.
//
// A first byte of 0: the rest is what a rank sent.  Else a script of spans and
// names that is packed as a rank does it.  What was read must be drawn, and the
// drawn JSON be JSON.
#include "base/json.h"
#include "fuzz/fuzz.h"
#include "trace/recorder.h"

namespace aliquot::fuzz {
namespace {

trace::RankTrace trace_of(Script& script) {
  trace::RankTrace out;
  out.rank = script.number<int32_t>();
  out.clock_offset_ns = script.number<int64_t>();
  while (!script.empty() && out.spans.size() < 500) {
    if (script.byte() % 4 == 0) {
      out.names.emplace_back(script.short_text());
      continue;
    }
    trace::Span span;
    span.begin = script.number<int64_t>();
    span.end = script.number<int64_t>();
    span.bytes = script.number<int64_t>();
    span.lane = static_cast<trace::Lane>(script.number<int32_t>());
    span.pass = script.number<int32_t>();
    span.cause = static_cast<trace::Cause>(script.number<int32_t>());
    span.step = script.number<int32_t>();
    span.name = script.number<int32_t>();
    out.spans.push_back(span);
  }
  return out;
}

void draw(const std::vector<trace::RankTrace>& ranks) {
  std::string text = trace::perfetto_json(ranks);
  Result<Json> drawn = Json::parse(text);
  expect(drawn.ok(), "the trace is JSON: " + drawn.status().message());
  size_t spans = 0, names = 0;
  bool names_given = false;
  for (const trace::RankTrace& rank : ranks) {
    spans += rank.spans.size();
    names_given |= !rank.names.empty();
  }
  const Json& events = drawn->at("traceEvents");
  for (size_t i = 0; i < events.size(); ++i) {
    names += events.at(i).at("ph").as_string() == "M";
  }
  expect(events.size() == spans + names, "every span is an event");
  int32_t step = ranks[0].spans.empty() ? 0 : ranks[0].spans[0].step;
  for (int32_t which : {-1, step}) {
    std::string svg = trace::timeline_svg(ranks, which);
    expect(svg.ends_with("</svg>\n"), "the picture is whole");
    // A name may well be called so.
    expect(names_given || (svg.find("nan") == std::string::npos &&
                           svg.find("inf") == std::string::npos),
           "the picture has numbers");
  }
}

Writer span(int lane, int64_t begin, int64_t end, int cause, int step) {
  return Writer()
      .byte(1)
      .number(begin)
      .number(end)
      .number(int64_t{64})
      .number(lane)
      .number(int32_t{1})
      .number(cause)
      .number(step)
      .number(int32_t{0});
}

}  // namespace

Target target() {
  auto rank = [](int64_t offset) {
    return std::string(Writer().byte(1).number(int32_t{1}).number(offset));
  };
  std::string name = Writer().byte(0).short_text("block.0 \"q\" <a>");
  std::string work = span(0, 100, 900, 0, 3), wait = span(3, 200, 300, 2, 3);
  std::vector<std::string> seeds = {
      "",
      rank(0),
      rank(-50) + name + work + wait,
      rank(1ll << 62) + name + std::string(span(4, 1ll << 62, -1, 5, -1)),
      rank(0) + std::string(span(77, 1, 2, 99, 1)) + work,
      rank(0) + std::string(Writer().byte(0).short_text("\xff\xfe\x80")) +
          work};
  trace::RankTrace packed;
  packed.names = {"a", ""};
  packed.spans.resize(3);
  seeds.push_back(std::string(1, '\0') + trace::pack(packed));
  return {"fuzz_trace", 16 << 20, seeds};
}

}  // namespace aliquot::fuzz

int one_input(const uint8_t* data, size_t size) {
  using namespace aliquot;
  using namespace aliquot::fuzz;
  Script script(data, size);
  bool bytes = script.byte() == 0;
  std::string sent =
      bytes ? std::string(script.all()) : trace::pack(trace_of(script));
  trace::RankTrace good, other;
  good.spans.push_back(
      {100, 200, 8, trace::Lane::kStep, 0, trace::Cause::kNone, 3, -1, 0});
  if (!trace::unpack(sent, &other)) return 0;
  draw({other});
  draw({good, other});
  return 0;
}
