// Starts one rank.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace aliquot::tools {

struct ChildSpec {
  std::vector<std::string> command;
  // Variables to set, and names' beginnings to remove.
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<std::string> removed_prefixes;
  int in = -1, out = -1, err = -1;  // to become 0, 1, 2; -1: inherited
};

struct StartedChild {
  pid_t pid = -1;
  int error = 0;  // errno of fork or exec; the child is gone then
};

// In a session of its own; killed when the calling process dies.  Returns after
// exec has succeeded or failed.
StartedChild start_child(const ChildSpec& spec);

}  // namespace aliquot::tools
