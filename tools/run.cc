// aliquot run: starts local ranks.
#include <fmt/format.h>

#include <memory>

#include "tools/commands.h"
#include "tools/job.h"

namespace aliquot::tools {
namespace {

// A first "--" ends our options; one that comes later is the command's own.
std::vector<std::string> command_of(std::vector<std::string> words,
                                    const std::vector<std::string>& tail) {
  bool ours = words.empty() && !tail.empty();
  words.insert(words.end(), tail.begin() + (ours ? 1 : 0), tail.end());
  return words;
}

}  // namespace

void add_run(CLI::App& app, const std::vector<std::string>& tail, int* code) {
  CLI::App* sub = app.add_subcommand(
      "run",
      "Start N ranks of a command on this machine and end them together");
  auto options = std::make_shared<JobOptions>();
  auto plain = std::make_shared<bool>(false);
  auto output = std::make_shared<std::string>("all");
  sub->footer("Example: aliquot run -n 4 -- ./train --steps 100");
  sub->add_option("-n,--ranks", options->ranks, "Number of ranks (required)")
      ->check(CLI::Range(1, 64));
  sub->add_flag("--no-prefix", *plain, "Do not put \"[rank] \" before lines");
  sub->add_option("--output", *output,
                  "Whose output to show: all, or rank0 (as it is; errors of "
                  "all ranks)")
      ->check(CLI::IsMember({"all", "rank0"}));
  sub->add_option("--grace", options->grace_s,
                  "Seconds from SIGTERM to SIGKILL when a job is ended")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  sub->add_option("--flight", options->flight,
                  "Keep the ranks' flight records in this folder, for aliquot "
                  "blame");
  sub->prefix_command();
  sub->callback([=] {
    options->command = command_of(sub->remaining(), tail);
    // Before what is missing: that may be what was meant.
    if (!options->command.empty() && options->command[0].starts_with('-')) {
      throw CLI::ValidationError(fmt::format(
          "aliquot run: unknown option {}; the command comes after --, as in: "
          "aliquot run -n 4 -- ./train",
          options->command[0]));
    }
    if (sub->count("--ranks") == 0) {
      throw CLI::ValidationError(
          "aliquot run: the number of ranks is missing, as in: aliquot run -n "
          "4 -- ./train");
    }
    if (options->command.empty()) {
      throw CLI::ValidationError(
          "aliquot run: a command is missing, as in: aliquot run -n 4 -- "
          "./train");
    }
    options->output = *output == "rank0" ? Output::kRank0
                      : *plain           ? Output::kPlain
                                         : Output::kPrefixed;
    *code = Job(*options).run();
  });
}

}  // namespace aliquot::tools
