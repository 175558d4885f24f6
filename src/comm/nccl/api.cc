#include "comm/nccl/api.h"

namespace aliquot::nccl {
namespace {

constexpr const char* kName = "nccl";

// Resolves into a function pointer of any type.
template <typename F>
Status resolve(LibrarySet& libraries, const char* symbol, F*& into) {
  auto address = libraries.symbol(kName, symbol);
  if (!address.ok()) {
    return make_error(ALQ_UNAVAILABLE, "{}", address.status().message());
  }
  into = reinterpret_cast<F*>(*address);
  return {};
}

Status resolve_all(LibrarySet& set, Api& api) {
  ALQ_TRY(resolve(set, "ncclGetUniqueId", api.get_unique_id));
  ALQ_TRY(resolve(set, "ncclCommInitRankConfig", api.init_rank));
  ALQ_TRY(resolve(set, "ncclCommSplit", api.split));
  ALQ_TRY(resolve(set, "ncclCommFinalize", api.finalize));
  ALQ_TRY(resolve(set, "ncclCommDestroy", api.destroy));
  ALQ_TRY(resolve(set, "ncclCommAbort", api.abort));
  ALQ_TRY(resolve(set, "ncclCommGetAsyncError", api.async_error));
  ALQ_TRY(resolve(set, "ncclCommUserRank", api.user_rank));
  ALQ_TRY(resolve(set, "ncclGetErrorString", api.error_string));
  ALQ_TRY(resolve(set, "ncclGetLastError", api.last_error));
  ALQ_TRY(resolve(set, "ncclGroupStart", api.group_start));
  ALQ_TRY(resolve(set, "ncclGroupEnd", api.group_end));
  ALQ_TRY(resolve(set, "ncclRedOpCreatePreMulSum", api.premul_sum));
  ALQ_TRY(resolve(set, "ncclRedOpDestroy", api.op_destroy));
  ALQ_TRY(resolve(set, "ncclAllReduce", api.all_reduce));
  ALQ_TRY(resolve(set, "ncclReduce", api.reduce));
  ALQ_TRY(resolve(set, "ncclBroadcast", api.broadcast));
  ALQ_TRY(resolve(set, "ncclReduceScatter", api.reduce_scatter));
  ALQ_TRY(resolve(set, "ncclAllGather", api.all_gather));
  ALQ_TRY(resolve(set, "ncclSend", api.send));
  return resolve(set, "ncclRecv", api.recv);
}

}  // namespace

uint32_t capabilities(int32_t version) {
  uint32_t bits = kCanSplit | kNonBlocking | kRegisters;
  if (version >= 22600) bits |= kLaunchOrder;
  if (version >= 22700) bits |= kWindows | kShrinks;
  if (version >= 22900) bits |= kRevokes;
  if (version >= 23003) bits |= kSharesDevice;
  return version < kOldest ? 0 : bits;
}

std::string capability_text(uint32_t bits) {
  static constexpr const char* kNames[] = {
      "split",   "nonblocking", "register", "launch order",
      "windows", "shrink",      "revoke",   "shared device"};
  std::string text;
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if ((bits >> i & 1) == 0) continue;
    text += text.empty() ? "" : ", ";
    text += kNames[i];
  }
  return text;
}

std::string version_text(int32_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100,
                     version % 100);
}

std::string Api::failure(const char* what, NcclResult result,
                         CommHandle comm) const {
  const char* text = error_string(result);
  const char* last = last_error(comm);
  std::string out =
      fmt::format("{}: {} ({})", what, text == nullptr ? "unknown error" : text,
                  static_cast<int32_t>(result));
  if (last != nullptr && *last != '\0') out += fmt::format("; {}", last);
  return out;
}

Result<Api> load(LibrarySet& libraries, std::vector<std::string> dirs,
                 std::string path) {
  LibrarySpec spec;
  spec.name = kName;
  spec.sonames = {"libnccl.so.2"};
  spec.hint_dirs = std::move(dirs);
  spec.override_path = std::move(path);
  auto opened = libraries.open(spec);
  if (!opened.ok()) {
    return make_error(ALQ_UNAVAILABLE,
                      "groups on CUDA need NCCL 2.19 or newer: {}",
                      opened.status().message());
  }
  Api api;
  ALQ_TRY(resolve(libraries, "ncclGetVersion", api.get_version));
  int version = 0;
  NcclResult result = api.get_version(&version);
  if (result != kSuccess) {
    return make_error(ALQ_UNAVAILABLE, "ncclGetVersion failed with {}",
                      static_cast<int32_t>(result))
        .with_native(ALQ_DOMAIN_NCCL, result);
  }
  // Up to 2.8 the version was coded in thousands.
  api.version =
      version < 10000 ? version / 1000 * 10000 + version % 1000 : version;
  api.can = capabilities(api.version);
  libraries.set_version(kName, fmt::format("{} ({})", version_text(api.version),
                                           capability_text(api.can)));
  if (api.version < kOldest || api.version >= 30000) {
    return make_error(ALQ_UNAVAILABLE,
                      "NCCL {} is loaded; this library needs 2.19 or newer of "
                      "major version 2",
                      version_text(api.version));
  }
  ALQ_TRY(resolve_all(libraries, api));
  return api;
}

}  // namespace aliquot::nccl
