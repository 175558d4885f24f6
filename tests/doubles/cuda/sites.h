// Where in the library waits and records come from.
#pragma once

#include <string>

#include "tests/doubles/cuda/stream.h"

namespace aliquot::cuda_double {

// "" unless sites are noted or a fault is put in at one.  caller: the address
// that the driver's function returns to.
std::string site_of(const char* kind, const EventImpl& event,
                    const StreamImpl& stream, const void* caller);

}  // namespace aliquot::cuda_double
