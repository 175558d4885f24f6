// Every dlopen of the library goes through here, so that what was loaded, from
// where, and why something was not, can be read (alq_runtime_info).
//
// Search order: the override (only it, if given); a copy that is already in the
// process; the hint directories; the system.  A second copy of a library such
// as NCCL in one process is the most common trouble, hence the order.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace aliquot {

struct LibrarySpec {
  std::string name;                  // "nccl"
  std::vector<std::string> sonames;  // best first: "libnccl.so.2"
  std::string override_path;         // given by the user
  std::vector<std::string> hint_dirs;
};

struct LibraryRecord {
  std::string name;
  bool loaded = false;
  std::string path;                   // as the loader sees it
  std::string how;                    // "override", "process", "hint", "system"
  std::string version;                // set by who asked the library
  std::vector<std::string> failures;  // "what: why", in order of trying
  std::string warning;                // a hint that disagrees with what is used
};

// The libraries of one context.  Loaded libraries are never unloaded: they may
// have started threads or registered exit handlers.
class LibrarySet {
 public:
  // The handle.  A second call with the same name gives the same answer.
  // NOT_FOUND lists what was tried and the loader's reasons.
  Result<void*> open(const LibrarySpec& spec);
  // NOT_FOUND names the library's path and the symbol.
  Result<void*> symbol(const std::string& name, const char* symbol);
  void set_version(const std::string& name, std::string version);

  std::vector<LibraryRecord> records() const;
  // An array of objects, one per library asked for.
  Json json() const;

 private:
  struct Entry {
    LibraryRecord record;
    void* handle = nullptr;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
};

}  // namespace aliquot
