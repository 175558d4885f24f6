// What `aliquot doctor` finds out about the machine.  A probe that might hurt
// runs in a child process.
#pragma once

#include <string>
#include <vector>

namespace aliquot::tools {

enum class Verdict {
  kOk,
  kNote,  // works, but slower or smaller than it could
  kBad,   // CPU ranks cannot run
};

struct Finding {
  std::string name;
  Verdict verdict = Verdict::kOk;
  std::string value;   // what was found
  std::string advice;  // a sentence; empty when there is nothing to do
};

// Cores, memory, limits.
std::vector<Finding> probe_resources();
// Shared memory, huge pages, reading a peer's memory, loopback.
std::vector<Finding> probe_sharing();
// Libraries that are loaded on demand, looked for in these folders first.
std::vector<Finding> probe_libraries(const std::vector<std::string>& folders);

}  // namespace aliquot::tools
