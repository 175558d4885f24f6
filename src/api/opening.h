// The parts of alq_open.
#pragma once

#include <string>
#include <vector>

#include "api/state.h"

namespace aliquot::api {

// "key=value;..." into the context; null is none.
Status read_hints(const char* hints, Context* context, std::string* flight_dir);

// Is the device one that can exist?  Touches none.
Status check_device(const alq_open_desc& desc);
// Sets the state's device, and the host device beside it.
Status open_device(const alq_open_desc& desc, ContextState* state);

// Makes the world of all ranks' blobs.  Collective.
Status connect_world(ContextState* state, const std::vector<std::string>& blobs,
                     Deadline deadline);

}  // namespace aliquot::api
