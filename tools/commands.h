// The subcommands of `aliquot`.  Each adds itself to the application; main runs
// the one that was chosen and exits with *code.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace aliquot::tools {

inline constexpr int kUsage = 2;  // exit code of a wrong command line

// tail: "--" and what follows it on the command line, if it is there.
void add_run(CLI::App& app, const std::vector<std::string>& tail, int* code);
void add_doctor(CLI::App& app, int* code);
void add_bench(CLI::App& app, int* code);
void add_blame(CLI::App& app, int* code);
void add_version(CLI::App& app, int* code);

}  // namespace aliquot::tools
