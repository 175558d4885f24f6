// aliquot bench: measures this machine.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <memory>

#include "tools/bench_coll.h"
#include "tools/commands.h"

namespace aliquot::tools {
namespace {

struct NamedOp {
  const char* name;
  Op op;
  bool places;  // has an in-place form beside the other
};
constexpr NamedOp kOps[] = {
    {"all_reduce", Op::kAllReduce, true},
    {"all_gather", Op::kAllGather, true},
    {"reduce_scatter", Op::kReduceScatter, true},
    {"broadcast", Op::kBroadcast, false},
    {"all_to_all", Op::kAllToAll, false},
    {"barrier", Op::kBarrier, false},
};

// "4K", "64M", "1G", "1000".
int64_t parse_size(const std::string& text) {
  int64_t value = 0;
  auto [end, ec] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit(end, text.data() + text.size());
  int64_t factor = unit.empty()                   ? 1
                   : unit == "K" || unit == "KiB" ? 1 << 10
                   : unit == "M" || unit == "MiB" ? 1 << 20
                   : unit == "G" || unit == "GiB" ? 1 << 30
                                                  : 0;
  if (ec != std::errc() || factor == 0 || value < 1 ||
      value > (int64_t{8} << 30) / factor) {
    throw CLI::ValidationError("--sizes", "\"" + text +
                                              "\" is not a size from 1 to 8G, "
                                              "such as 4K or 64M");
  }
  return value * factor;
}

// Looked at before the measuring, which takes minutes.
bool can_write(const std::string& path) {
  if (path.empty() || std::ofstream(path, std::ios::app)) return true;
  fmt::print(stderr, "aliquot bench: cannot write {}: {}\n", path,
             std::strerror(errno));
  return false;
}

int run_cases(Team& team, const CollOptions& options) {
  bool speaks = team.rank() == 0;
  alq_context* context = team.open(options.hints.c_str());
  alq_error error = {};
  error.struct_size = sizeof error;
  alq_group* group = nullptr;
  team.check(alq_group_world(context, &group, &error), error,
             "alq_group_world");
  CollReport report;
  report.options = &options;
  report.before = check_health(team);
  if (speaks) print_heading(options, report.before);
  for (const CollCase& c : make_cases(options)) {
    report.results.push_back(measure(team, group, context, c, options));
    if (speaks) print_result(report.results.back());
  }
  report.after = check_health(team);
  alq_group_release(group);
  team.check(alq_close(context, 0, &error), error, "alq_close");
  alq_release(context);
  if (!speaks) return 0;
  print_closing(report);
  if (!options.json.empty() && !write_json(report)) {
    team.fail("cannot write " + options.json);
  }
  return 0;
}

int bench_coll(const CollOptions& options) {
  int64_t most = 0;
  for (int64_t size : options.sizes) most = std::max(most, size);
  // Out of place needs a source and a destination.
  size_t bytes = static_cast<size_t>(2 * most);
  return run_team(options.ranks, bytes,
                  [&](Team& team) { return run_cases(team, options); });
}

void add_coll(CLI::App* bench, int* code) {
  CLI::App* sub = bench->add_subcommand(
      "coll", "Collectives among ranks of this machine, against bare loops");
  auto options = std::make_shared<CollOptions>();
  auto sizes = std::make_shared<std::vector<std::string>>(
      std::vector<std::string>{"4K", "64K", "1M", "64M"});
  for (const NamedOp& o : kOps) options->ops.push_back(o.name);
  options->buffers = {"shared", "huge", "private"};
  sub->add_option("-n,--ranks", options->ranks, "Number of ranks")
      ->check(CLI::Range(1, kMostRanks))
      ->capture_default_str();
  sub->add_option("--ops", options->ops, "Operations, comma separated")
      ->delimiter(',')
      ->check(CLI::Validator(
          [](std::string& name) {
            Op op;
            return op_from_name(name, &op)
                       ? std::string()
                       : fmt::format("there is no operation \"{}\"", name);
          },
          "OP"))
      ->capture_default_str();
  sub->add_option("--sizes", *sizes,
                  "Bytes of the larger buffer of a rank, comma separated")
      ->delimiter(',')
      ->capture_default_str();
  sub->add_option(
         "--buffers", options->buffers,
         "shared (alq_buffer_alloc), huge (malloc, advised to use huge "
         "pages), private (malloc)")
      ->delimiter(',')
      ->check(CLI::IsMember({"shared", "huge", "private"}))
      ->capture_default_str();
  sub->add_option("--pairs", options->pairs,
                  "Batches of each kind per case, in turn")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  sub->add_option("--batch-ms", options->batch_ms,
                  "Milliseconds that a batch should take")
      ->check(CLI::Range(0.01, 10000.0))
      ->capture_default_str();
  sub->add_flag("--fresh", options->fresh,
                "Every rank writes its source before each operation, untimed");
  sub->add_option("--hints", options->hints, "Hints of alq_open");
  sub->add_option("--json", options->json, "Also write JSON to this file");
  sub->callback([=] {
    for (const std::string& text : *sizes) {
      options->sizes.push_back(parse_size(text));
    }
    *code = can_write(options->json) ? bench_coll(*options) : 1;
  });
}

void add_call(CLI::App* bench, int* code) {
  CLI::App* sub = bench->add_subcommand(
      "call", "One call beside its data, and the first call after init");
  auto json = std::make_shared<std::string>();
  sub->add_option("--json", *json, "Also write JSON to this file");
  sub->callback([=] { *code = can_write(*json) ? bench_call(*json) : 1; });
}

}  // namespace

const char* op_name(Op op) {
  for (const NamedOp& o : kOps) {
    if (o.op == op) return o.name;
  }
  return "?";
}

bool op_from_name(const std::string& name, Op* op) {
  for (const NamedOp& o : kOps) {
    if (name == o.name) return *op = o.op, true;
  }
  return false;
}

std::vector<CollCase> make_cases(const CollOptions& options) {
  std::vector<CollCase> out;
  for (const std::string& name : options.ops) {
    const NamedOp* op =
        std::find_if(std::begin(kOps), std::end(kOps),
                     [&](const NamedOp& o) { return name == o.name; });
    if (op->op == Op::kBarrier) {
      out.push_back({op->op, 0, "shared", false});
      continue;
    }
    for (const std::string& buffers : options.buffers) {
      for (int64_t size : options.sizes) {
        bool only_in = op->op == Op::kBroadcast;
        if (!only_in) out.push_back({op->op, size, buffers, false});
        if (only_in || op->places) out.push_back({op->op, size, buffers, true});
      }
    }
  }
  return out;
}

void add_bench(CLI::App& app, int* code) {
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine");
  bench->require_subcommand(1);
  add_coll(bench, code);
  add_call(bench, code);
}

}  // namespace aliquot::tools
