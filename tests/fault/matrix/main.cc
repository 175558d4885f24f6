// fault_matrix: faults x operations x kinds of ranks x numbers of ranks.
//
//   fault_matrix [--sample N] [--repeat N] [--only TEXT] [--defaults]
//                [--report FILE] [--check FILE] [--list]
//
// --sample N runs every N-th run; --only those whose text has TEXT; --defaults
// adds a run of each fault kind at unscaled constants.  --report writes the
// page of docs/, --check compares a page's rows and counts with what there is.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "fault/matrix/report.h"

namespace aliquot::test {
namespace {

struct Options {
  int sample = 1, repeat = 1;
  bool defaults = false, list = false;
  std::string only, report, check;
};

bool parse(int argc, char** argv, Options* o) {
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i];
    if (name == "--defaults") {
      o->defaults = true;
    } else if (name == "--list") {
      o->list = true;
    } else if (i + 1 == argc) {
      return false;
    } else if (name == "--sample") {
      o->sample = std::atoi(argv[++i]);
    } else if (name == "--repeat") {
      o->repeat = std::atoi(argv[++i]);
    } else if (name == "--only") {
      o->only = argv[++i];
    } else if (name == "--report") {
      o->report = argv[++i];
    } else if (name == "--check") {
      o->check = argv[++i];
    } else {
      return false;
    }
  }
  return o->sample > 0 && o->repeat > 0;
}

// Of the run in progress; ranks that are threads can not be killed one by one.
char current[256];

void hang(int) {
  constexpr char kText[] = "HANG: ";
  if (write(2, kText, sizeof kText - 1) < 0 ||
      write(2, current, strlen(current)) < 0) {
    _exit(4);
  }
  _exit(3);
}

RunResult guarded_run(const Run& run, bool blame) {
  std::string text = run.text() + "\n";
  current[text.copy(current, sizeof current - 1)] = '\0';
  alarm(90);
  RunResult result = run_once(run, blame);
  alarm(0);
  if (!result.passed) {
    fmt::print("FAILED {}{}", text, result.text);
    std::fflush(stdout);
  }
  return result;
}

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Mixed, so that a sample holds every shape and place.
bool in_sample(size_t i, int sample, int repeat) {
  uint64_t mixed = i * 0x9e3779b97f4a7c15u >> 32;
  return static_cast<int>(mixed % static_cast<uint64_t>(sample)) ==
         repeat % sample;
}

std::vector<Run> chosen_runs(const Options& o) {
  std::vector<Run> runs;
  for (const Run& run : all_runs()) {
    if (run.text().find(o.only) != std::string::npos) runs.push_back(run);
  }
  return runs;
}

int run_all(const Options& o) {
  Report report;
  std::vector<Run> runs = chosen_runs(o);
  std::fflush(stdout);
  for (int repeat = 0; repeat < o.repeat; ++repeat) {
    for (size_t i = 0; i < runs.size(); ++i) {
      if (!in_sample(i, o.sample, repeat)) continue;
      report.add(runs[i], guarded_run(runs[i], true));
    }
  }
  for (const Run& run : default_runs()) {
    if (!o.defaults || run.text().find(o.only) == std::string::npos) continue;
    report.add_default(run, guarded_run(run, false));
  }
  bool good = report.run() > 0 && report.passed() == report.run();
  if (!o.report.empty()) {
    std::ofstream(o.report) << report.markdown(o.repeat);
  }
  if (!o.check.empty()) {
    std::string differs = check_page(file_text(o.check));
    if (!differs.empty()) {
      good = false;
      fmt::print(
          "{} is not what the matrix is: {}; write it anew with "
          "--report\n",
          o.check, differs);
    }
  }
  fmt::print("{} checks, {} failures\n", report.run(),
             report.run() - report.passed());
  return good ? 0 : 1;
}

}  // namespace
}  // namespace aliquot::test

int main(int argc, char** argv) {
  using namespace aliquot::test;
  Options o;
  if (!parse(argc, argv, &o)) {
    fmt::print(stderr,
               "usage: fault_matrix [--sample N] [--repeat N] [--only TEXT] "
               "[--defaults]\n"
               "                    [--report FILE] [--check FILE] [--list]\n"
               "docs/testing.md says more\n");
    return 2;
  }
  if (o.list) {
    for (const Run& run : chosen_runs(o)) fmt::print("{}\n", run.text());
    return 0;
  }
  signal(SIGALRM, hang);
  return run_all(o);
}
