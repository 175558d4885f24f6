// The NCCL that a wheel brought loads by the ordinary path and tells its
// version.  Without one: 77, "skipped".  argv[1]: the folder it is in.
#include <cstdio>
#include <string>

#include "comm/nccl/api.h"

using namespace aliquot;

namespace {

int fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  LibrarySet none;
  auto missing = nccl::load(none, {}, "/nowhere/libnccl.so.2");
  if (missing.ok() || missing.status().code() != ALQ_UNAVAILABLE ||
      missing.status().message().find("/nowhere") == std::string::npos) {
    return fail("a missing library is not told well: " +
                missing.status().message());
  }
  if (argc < 2 || argv[1][0] == '\0') {
    std::puts("no NCCL wheel: skipped");
    return 77;
  }
  LibrarySet libraries;
  auto api = nccl::load(libraries, {argv[1]});
  if (!api.ok()) return fail(api.status().message());
  const LibraryRecord record = libraries.records().at(0);
  if (!record.loaded || record.how != "hint" ||
      record.path.find(argv[1]) != 0) {
    return fail("loaded from elsewhere: " + record.path + " by " + record.how);
  }
  if (api->version < nccl::kOldest || (api->can & nccl::kCanSplit) == 0 ||
      record.version.find(nccl::version_text(api->version)) != 0) {
    return fail("version " + record.version);
  }
  // Without a driver it can not do more, and says so in words.
  nccl::UniqueId id;
  nccl::NcclResult result = api->get_unique_id(&id);
  std::printf("NCCL %s from %s; ncclGetUniqueId: %s\n", record.version.c_str(),
              record.path.c_str(), api->error_string(result));
  return api->error_string(result) == nullptr ? 1 : 0;
}
