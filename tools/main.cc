// The `aliquot` command: one subcommand per file, see docs/command.md.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "tools/commands.h"

namespace {

// Says which commands there are when the next word is none of them; words are
// in the parser's order, last first.
bool is_known(const CLI::App& app, const std::vector<std::string>& words,
              const std::string& path) {
  std::string word = words.empty() ? "" : words.back();
  if (word == "-h" || word == "--help") return true;
  std::string names;
  for (const CLI::App* sub : app.get_subcommands(nullptr)) {
    if (sub->get_name() == word) {
      return sub->get_require_subcommand_min() == 0 ||
             is_known(*sub, {words.begin(), words.end() - 1},
                      path + " " + word);
    }
    names += " " + sub->get_name();
  }
  const char* kind = word.starts_with("-") ? "option" : "command";
  fmt::print(stderr,
             "{} {}; it has:{}\nRun with --help for more information.\n", path,
             word.empty() ? "needs a command"
                          : fmt::format("has no {} \"{}\"", kind, word),
             names);
  return false;
}

// What a parent may have left otherwise: nothing of ours is opened as standard
// input or output, and children that end wait until they are reaped.
void set_up_process() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", O_RDWR);
  }
  signal(SIGCHLD, SIG_DFL);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace aliquot::tools;
  set_up_process();
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
  if (!words.empty() && words[0] == "--version") words[0] = "version";
  std::reverse(words.begin(), words.end());  // as the parser wants them
  int code = 0;
  add_run(app, tail, &code);
  add_doctor(app, &code);
  add_bench(app, &code);
  add_blame(app, &code);
  add_version(app, &code);
  if (!is_known(app, words, "aliquot")) return kUsage;
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    // --help is not an error.
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  return code;
}
