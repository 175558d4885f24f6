#include "base/dynlib.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>

namespace aliquot {
namespace {

std::string path_of(void* handle) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return "";
  return map->l_name;
}

bool exists(const std::string& path) {
  char* real = realpath(path.c_str(), nullptr);
  std::free(real);
  return real != nullptr;
}

bool same_file(const std::string& a, const std::string& b) {
  char* left = realpath(a.c_str(), nullptr);
  char* right = realpath(b.c_str(), nullptr);
  bool same = left != nullptr && right != nullptr &&
              std::string_view(left) == std::string_view(right);
  std::free(left);
  std::free(right);
  return same;
}

// One attempt; notes why it failed.
void* attempt(const std::string& file, int flags, const char* how,
              LibraryRecord& record) {
  dlerror();
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
  if (handle != nullptr) {
    record.loaded = true;
    record.how = how;
    record.path = path_of(handle);
    return handle;
  }
  const char* why = dlerror();
  if (why == nullptr) why = "not in this process";
  record.failures.push_back(fmt::format("{} {}: {}", how, file, why));
  return nullptr;
}

void* search(const LibrarySpec& spec, LibraryRecord& record) {
  if (!spec.override_path.empty()) {
    return attempt(spec.override_path, 0, "override", record);
  }
  for (const std::string& soname : spec.sonames) {
    void* handle = attempt(soname, RTLD_NOLOAD, "process", record);
    if (handle != nullptr) return handle;
  }
  for (const std::string& dir : spec.hint_dirs) {
    for (const std::string& soname : spec.sonames) {
      void* handle =
          attempt(fmt::format("{}/{}", dir, soname), 0, "hint", record);
      if (handle != nullptr) return handle;
    }
  }
  for (const std::string& soname : spec.sonames) {
    void* handle = attempt(soname, 0, "system", record);
    if (handle != nullptr) return handle;
  }
  return nullptr;
}

// Says so when the copy in the process is not the one that was hinted at.
void compare_with_hints(const LibrarySpec& spec, LibraryRecord& record) {
  if (record.how != "process") return;
  for (const std::string& dir : spec.hint_dirs) {
    for (const std::string& soname : spec.sonames) {
      std::string hinted = fmt::format("{}/{}", dir, soname);
      if (!exists(hinted)) continue;
      if (!same_file(hinted, record.path)) {
        record.warning =
            fmt::format("uses {}, which the process had loaded already, not {}",
                        record.path, hinted);
      }
      return;
    }
  }
}

Status not_found(const LibraryRecord& record) {
  return make_error(ALQ_NOT_FOUND, "library \"{}\" could not be loaded: {}",
                    record.name, fmt::join(record.failures, "; "));
}

}  // namespace

Result<void*> LibrarySet::open(const LibrarySpec& spec) {
  std::lock_guard lock(mutex_);
  auto [it, is_new] = entries_.try_emplace(spec.name);
  Entry& entry = it->second;
  if (is_new) {
    entry.record.name = spec.name;
    entry.handle = search(spec, entry.record);
    compare_with_hints(spec, entry.record);
  }
  if (entry.handle == nullptr) return not_found(entry.record);
  return entry.handle;
}

Result<void*> LibrarySet::symbol(const std::string& name, const char* symbol) {
  std::lock_guard lock(mutex_);
  auto it = entries_.find(name);
  if (it == entries_.end() || it->second.handle == nullptr) {
    return make_error(ALQ_FAILED_PRECONDITION, "library \"{}\" is not loaded",
                      name);
  }
  void* address = dlsym(it->second.handle, symbol);
  if (address != nullptr) return address;
  return make_error(ALQ_NOT_FOUND, "{} has no {}; is it another version?",
                    it->second.record.path, symbol);
}

void LibrarySet::set_version(const std::string& name, std::string version) {
  std::lock_guard lock(mutex_);
  auto it = entries_.find(name);
  if (it != entries_.end()) it->second.record.version = std::move(version);
}

std::vector<LibraryRecord> LibrarySet::records() const {
  std::lock_guard lock(mutex_);
  std::vector<LibraryRecord> out;
  for (const auto& [name, entry] : entries_) out.push_back(entry.record);
  return out;
}

Json LibrarySet::json() const {
  Json out = Json::array();
  for (const LibraryRecord& record : records()) {
    Json j = Json::object();
    j["name"] = record.name;
    j["loaded"] = record.loaded;
    if (record.loaded) {
      j["path"] = record.path;
      j["how"] = record.how;
      j["version"] = record.version;
    }
    if (!record.warning.empty()) j["warning"] = record.warning;
    j["failures"] = Json::array();
    for (const std::string& f : record.failures) j["failures"].push_back(f);
    out.push_back(std::move(j));
  }
  return out;
}

}  // namespace aliquot
