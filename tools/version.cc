// aliquot version: what the linked library says about itself.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "aliquot/aliquot.h"
#include "tools/commands.h"

namespace aliquot::tools {
namespace {

int print_version(bool json) {
  if (json) {
    fmt::print("{}\n", alq_build_info());
    return 0;
  }
  auto info = nlohmann::ordered_json::parse(alq_build_info(), nullptr, false);
  int32_t version = alq_version();
  fmt::print("aliquot {}.{}.{}\n", version / 1000000, version / 1000 % 1000,
             version % 1000);
  for (auto& [name, value] : info.items()) {
    if (name == "version") continue;
    fmt::print("  {:<10} {}\n", name,
               value.is_string() ? value.get<std::string>() : value.dump());
  }
  return 0;
}

}  // namespace

void add_version(CLI::App& app, int* code) {
  CLI::App* sub = app.add_subcommand("version", "Say which library this is");
  auto json = std::make_shared<bool>(false);
  sub->add_flag("--json", *json, "Write JSON");
  sub->callback([=] { *code = print_version(*json); });
}

}  // namespace aliquot::tools
