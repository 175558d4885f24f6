// Tables and JSON of `aliquot bench coll`.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tools/bench_coll.h"

namespace aliquot::tools {
namespace {

std::string size_text(int64_t bytes) {
  if (bytes >= 1 << 20 && bytes % (1 << 20) == 0) {
    return fmt::format("{} MiB", bytes >> 20);
  }
  if (bytes >= 1024 && bytes % 1024 == 0) {
    return fmt::format("{} KiB", bytes >> 10);
  }
  return fmt::format("{} B", bytes);
}

std::string time_text(double seconds) {
  double us = seconds * 1e6;
  return us < 100 ? fmt::format("{:.2f}", us) : fmt::format("{:.0f}", us);
}

nlohmann::ordered_json json_of(const Range& r) {
  return {{"p10", r.low}, {"median", r.median}, {"p90", r.high}};
}

nlohmann::ordered_json json_of(const Health& h) {
  return {{"solo_spread", h.solo_spread},
          {"all_over_solo", h.duo_over_solo},
          {"stolen", h.stolen},
          {"noisy", h.noisy}};
}

nlohmann::ordered_json json_of(const CollResult& r) {
  nlohmann::ordered_json j = {{"op", op_name(r.what.op)},
                              {"bytes", r.what.bytes},
                              {"buffers", r.what.buffers},
                              {"in_place", r.what.in_place},
                              {"ops_per_batch", r.ops_per_batch},
                              {"seconds", json_of(r.seconds)},
                              {"bare_seconds", json_of(r.floor_seconds)},
                              {"ratio", json_of(r.ratio)}};
  if (r.has_calls) {
    j["calls_seconds"] = json_of(r.calls_seconds);
    j["calls_ratio"] = json_of(r.calls_ratio);
  }
  return j;
}

void print_health(const char* when, const Health& h) {
  fmt::print(
      "health {}: one loop alone varies {:.2f}x (10-90 %), takes {:.2f}x as "
      "long on all ranks at once, loses {:.0f} % to others{}\n",
      when, h.solo_spread, h.duo_over_solo, h.stolen * 100,
      h.noisy ? "  NOISY" : "");
}

}  // namespace

void print_heading(const CollOptions& options, const Health& health) {
  fmt::print(
      "aliquot bench coll: {} ranks on {} cores, f32, {} pairs per "
      "case{}\n",
      options.ranks, usable_cores(), options.pairs,
      options.fresh ? ", sources written anew each time" : "");
  print_health("before", health);
  fmt::print(
      "times in us per operation, slowest rank, median; ratio to a bare "
      "loop, median [10-90 %] of pairs;\ncalls: to a bare loop of "
      "process_vm_readv on private memory\n\n");
  fmt::print("{:<15} {:>9}  {:<8} {:<6} {:>10} {:>8} {:>10}  {}\n", "operation",
             "size", "buffers", "place", "time", "GB/s", "bare", "ratio");
  std::fflush(stdout);
}

void print_result(const CollResult& r) {
  bool barrier = r.what.op == Op::kBarrier;
  double rate = static_cast<double>(r.what.bytes) / r.seconds.median * 1e-9;
  fmt::print(
      "{:<15} {:>9}  {:<8} {:<6} {:>10} {:>8} {:>10}  {:.2f} "
      "[{:.2f}-{:.2f}]{}\n",
      op_name(r.what.op), barrier ? "" : size_text(r.what.bytes),
      barrier ? "" : r.what.buffers.c_str(),
      barrier           ? ""
      : r.what.in_place ? "in"
                        : "out",
      time_text(r.seconds.median), barrier ? "" : fmt::format("{:.2f}", rate),
      time_text(r.floor_seconds.median), r.ratio.median, r.ratio.low,
      r.ratio.high,
      r.has_calls
          ? fmt::format("  calls {} {:.2f}", time_text(r.calls_seconds.median),
                        r.calls_ratio.median)
          : "");
  std::fflush(stdout);
}

void print_closing(const CollReport& report) {
  fmt::print("\n");
  print_health("after", report.after);
  if (report.noisy()) {
    fmt::print(
        "NOISY: the machine was not quiet; do not quote these "
        "figures\n");
  }
}

bool write_json(const CollReport& report) {
  nlohmann::ordered_json j;
  j["benchmark"] = "coll";
  j["library"] =
      nlohmann::ordered_json::parse(alq_build_info(), nullptr, false);
  j["ranks"] = report.options->ranks;
  j["cores"] = usable_cores();
  j["dtype"] = "f32";
  j["pairs"] = report.options->pairs;
  j["fresh"] = report.options->fresh;
  j["noisy"] = report.noisy();
  j["health_before"] = json_of(report.before);
  j["health_after"] = json_of(report.after);
  j["results"] = nlohmann::ordered_json::array();
  for (const CollResult& r : report.results) j["results"].push_back(json_of(r));
  std::ofstream file(report.options->json);
  file << j.dump(2) << "\n";
  file.close();
  return file.good();
}

}  // namespace aliquot::tools
