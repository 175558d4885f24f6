#include "comm/bootstrap/store_listen.h"

#include <sys/resource.h>

#include <cerrno>

namespace aliquot {

Status check_descriptors(int32_t size) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  rlim_t need = static_cast<rlim_t>(size) + 64;
  if (limit.rlim_cur >= need) return {};
  return make_error(ALQ_RESOURCE_EXHAUSTED,
                    "rank 0 serves {} ranks and needs about {} file "
                    "descriptors; the limit is {}: raise it (ulimit -n)",
                    size, need, limit.rlim_cur);
}

Result<Listener> bind_first(const StoreAddress& address) {
  ALQ_ASSIGN(std::vector<SocketAddress> all, resolve(address.host));
  Status last;
  for (SocketAddress& candidate : all) {
    for (int port = address.first; port <= address.last; ++port) {
      candidate.set_port(static_cast<uint16_t>(port));
      Result<Fd> fd = listen_on(candidate);
      if (fd.ok()) return Listener{std::move(*fd), candidate};
      last = fd.status();
    }
  }
  const char* hint =
      last.native_code() == EADDRNOTAVAIL
          ? "rank 0 must run on the host that the address names"
          : "another job or another rank 0 may be using it: choose another";
  return make_error(last.code(), "rank 0 cannot open the store: {}; {}",
                    last.message(), hint)
      .with_native(last.domain(), last.native_code());
}

}  // namespace aliquot
