// Checks of one collective call, before anything is shared with peers.  The
// same for every backend.
#pragma once

#include <string>

#include "comm/group.h"

namespace aliquot {

// Whose call it is.
struct GroupPlace {
  const std::string& name;
  int32_t rank, size;
};

// Checks a call and fills in what zero stands for.
Status normalize(const GroupPlace& group, Coll* coll);

// Bytes of src and dst that a checked call uses on this rank.
struct CollBytes {
  int64_t src = 0, dst = 0;
};
CollBytes coll_bytes(const GroupPlace& group, const Coll& coll);

// Bytes that the rank receives from others.
int64_t received_bytes(const Coll& coll, int32_t rank, int32_t size);

}  // namespace aliquot
