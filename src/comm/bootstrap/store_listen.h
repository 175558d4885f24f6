// Where the store's server listens.
#pragma once

#include "comm/bootstrap/address.h"
#include "comm/bootstrap/socket.h"

namespace aliquot {

struct Listener {
  Fd fd;
  SocketAddress address;
};

// The first free port of the range, on the first address that works.
Result<Listener> bind_first(const StoreAddress& address);

// Can this process hold a connection per rank?
Status check_descriptors(int32_t size);

}  // namespace aliquot
