// What ranks compare before data moves.
#pragma once

#include <span>
#include <string>

#include "comm/mem/core.h"

namespace aliquot::mem {

// Fills the hash from the other fields and the counts.
void seal_call(Call* call, std::span<const int64_t> counts);

inline bool same_call(const Call& a, const Call& b) {
  return a.hash[0] == b.hash[0] && a.hash[1] == b.hash[1];
}

// "all_reduce(1024 x f32, sum)"
std::string call_text(const Call& call);

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

const char* op_name(alq_reduce_op op);

}  // namespace aliquot::mem
