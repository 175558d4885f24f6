// Calls as the flight recorder sees them.
#pragma once

#include "comm/call.h"
#include "comm/mem/core.h"

namespace aliquot::mem {

// Tells the flight recorder, if there is one; returns what recorded() takes.
uint64_t record(const GroupCore& core, const Coll& coll, uint64_t number);
inline void recorded(const GroupCore& core, uint64_t order, FlightState state) {
  Flight* flight = core.world->context->flight.get();
  if (flight != nullptr) flight->set(order, state);
}
inline void record_failure(const GroupCore& core, const Status& error) {
  Flight* flight = core.world->context->flight.get();
  if (flight != nullptr) flight->fail(error);
}

}  // namespace aliquot::mem
