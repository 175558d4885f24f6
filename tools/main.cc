// The `aliquot` command: one subcommand per file, see docs/command.md.
#include <algorithm>
#include <string>
#include <vector>

#include "tools/commands.h"

int main(int argc, char** argv) {
  using namespace aliquot::tools;
  CLI::App app(
      "aliquot: runs, checks and measures parallel training on this machine",
      "aliquot");
  app.require_subcommand(1);
  // What follows "--" is run's command and no business of the parser.
  std::vector<std::string> words(argv + 1, argv + argc);
  std::vector<std::string> tail;
  auto cut = std::find(words.begin(), words.end(), "--");
  if (!words.empty() && words[0] == "run" && cut != words.end()) {
    tail.assign(cut, words.end());
    words.erase(cut, words.end());
  }
  std::reverse(words.begin(), words.end());  // as the parser wants them
  int code = 0;
  add_run(app, tail, &code);
  add_doctor(app, &code);
  add_bench(app, &code);
  add_version(app, &code);
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    // --help is not an error.
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  return code;
}
