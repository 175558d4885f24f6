// The keeper outlives the launcher by a moment: when the launcher ends in any
// way, SIGKILL included, the keeper kills the process groups that the launcher
// had not reported as ended.  Ranks themselves die by PR_SET_PDEATHSIG; the
// keeper is for what they started.  Then it removes a folder, if it was told of
// one.
#pragma once

#include <sys/types.h>

#include <string>

namespace aliquot::tools {

class Keeper {
 public:
  Keeper() = default;
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;
  ~Keeper();

  // folder: what the launcher removes itself if it can; may be empty.
  bool start(const std::string& folder);
  void add(pid_t group);
  void remove(pid_t group);

 private:
  int pipe_ = -1;
  pid_t pid_ = -1;
};

}  // namespace aliquot::tools
