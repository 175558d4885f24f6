// What the group does beside moving and summing: a file of its own, so that a
// test library can take some of it away.
#include "comm/mem/group.h"

namespace aliquot::mem {

Abilities MemGroup::abilities() const { return {true, true, true}; }

}  // namespace aliquot::mem
